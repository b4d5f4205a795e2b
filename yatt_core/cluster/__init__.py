"""The run's local cluster: a supervisor that outlives the driver, the Ray head it owns, and the driver's way to both."""
