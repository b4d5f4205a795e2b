"""An iteration's experience: logs and shards as they grow, the batch that is learnt from, telemetry."""
