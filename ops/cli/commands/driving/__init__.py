"""Commands that drive or redirect a run: `train`, `resume`, `stop`, `deploy`, `fork`, `rollback`, `retry`."""
