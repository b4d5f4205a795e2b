"""A checkpoint on a suite of held-out sets: its commands, its history and its words."""
