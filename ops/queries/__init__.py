"""Read models of pages, API, metrics and commands: each a function of ledger and home folder that returns frozen values."""
