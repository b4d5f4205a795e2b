"""Which engine instance gets which decode batch, and a controller's way to the pool of instances and back."""
