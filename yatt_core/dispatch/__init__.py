"""Which engine instance gets which decode batch, and how a controller communicates with the pool of instances."""
