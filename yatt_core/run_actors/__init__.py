"""The driver's view of a run's actors: finds or starts them, assigns work to them and detects their loss."""
