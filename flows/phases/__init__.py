"""The phases of an iteration as Prefect tasks, the handling of failed phases, and recovery."""
