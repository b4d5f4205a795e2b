"""A first spec and a reward file, written for the user's own data and model."""
