"""The supervisor: a small process that owns a run's local services and outlives the driver. Knows nothing of RLHF."""
