"""The form in which arrays, weights and columns travel between processes and lie on disk."""
