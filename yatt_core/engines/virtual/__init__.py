"""Engines without a model, for tests and simulations: seeded results after configured durations."""
