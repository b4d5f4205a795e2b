"""The durable tier: a run's finished folders on an object store, behind the local disk that everything is written to first."""
