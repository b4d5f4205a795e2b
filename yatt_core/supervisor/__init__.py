"""The supervisor: a small process that owns a run's local services and outlives the driver; independent of RLHF."""
