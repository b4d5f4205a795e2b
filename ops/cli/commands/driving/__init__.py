"""Commands that drive a run or change how it is driven: `train`, `resume`, `stop`, `deploy`, `fork`, `rollback`, `retry`."""
