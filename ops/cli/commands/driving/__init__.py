"""What drives a run or has others drive it: `train`, `resume`, `stop`, `deploy`, `fork`, `rollback`, `retry`."""
