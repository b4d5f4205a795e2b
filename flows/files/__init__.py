"""A run's files: which ones must be kept, and how they are fetched from the durable tier."""
