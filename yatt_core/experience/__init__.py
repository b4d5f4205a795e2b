"""An iteration's experience: growing logs and shards, the batch used for learning, and telemetry."""
