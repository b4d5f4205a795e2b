"""Commands about gates: `approvals`, `approve`, `reject`."""
