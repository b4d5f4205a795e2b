"""Guards: rules over a run's metrics and phases, judged by pure functions, and the alarms that they raise."""
