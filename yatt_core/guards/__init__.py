"""Guards: pure functions that check a run's metrics and phases against rules, and the alarms that they raise."""
