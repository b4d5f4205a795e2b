"""A run apart from its driver: home, spec, lease, control state, results, and the protocols of external services."""
