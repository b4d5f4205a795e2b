"""Which role each device has when: the workload's cost model, what policies see, and what they may do."""
