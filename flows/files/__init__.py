"""A run's files: which must be kept, and how they come from the durable tier."""
