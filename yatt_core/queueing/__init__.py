"""A queue over shared devices: pools, the decisions of its scheduler, and a model of time, cost and checkpoints."""
