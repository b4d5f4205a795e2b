"""A cluster of virtual engines on simulated time, for the product's own driver loop to run on: days in minutes, no sleeping."""
