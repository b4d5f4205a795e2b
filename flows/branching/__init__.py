"""A run's line of iterations: which ones can be restored, and how operators fork it, roll it back or change its spec."""
