"""The queue's service, and what commands and pages do to the queue."""
