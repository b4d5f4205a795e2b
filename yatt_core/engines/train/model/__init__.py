"""A model in training: its passes, its optimizer, and the files that hold its state."""
