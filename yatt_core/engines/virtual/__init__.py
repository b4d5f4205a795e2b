"""Engines without a model, for tests and simulations: seeded results that take given durations."""
