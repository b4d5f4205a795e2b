"""Which role each device has at which time: the workload's cost model, what policies can see and what they can do."""
