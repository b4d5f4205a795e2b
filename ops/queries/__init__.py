"""Read models for pages, API, metrics and commands: functions of ledger and home folder that return frozen values."""
