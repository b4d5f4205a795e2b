"""Read models: what pages and the JSON API show, each a function of ledger and home folder that returns frozen values."""
