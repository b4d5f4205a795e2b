"""A run's line of iterations: which of them can be restored; fork, rollback, spec revisions and failure budgets."""
