"""The format in which arrays, weights and columns are sent between processes and stored on disk."""
