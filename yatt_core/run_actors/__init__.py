"""The driver's view of a run's actors: finds or starts them, gives them work, notices their loss."""
