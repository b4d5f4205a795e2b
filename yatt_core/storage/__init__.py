"""The durable tier: a run's finished folders on an object store; everything is written to the local disk first."""
