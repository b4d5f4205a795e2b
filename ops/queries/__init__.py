"""Read models for pages, API, metrics and commands: functions of the ledger and the home folder that return frozen values."""
