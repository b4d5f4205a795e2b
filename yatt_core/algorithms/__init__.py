"""The arithmetic of training: advantages, losses, aggregation and schedules, as pure functions over arrays."""
