"""The phases of an iteration as Prefect tasks, what a failed one leads to, and recovery."""
