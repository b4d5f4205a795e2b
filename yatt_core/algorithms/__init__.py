"""The arithmetic of learning: advantages, losses, aggregation, schedules. Pure functions over arrays."""
