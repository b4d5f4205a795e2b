"""Commands about the queue over shared devices: `queue`, `queue submit`, `queue serve` and others."""
