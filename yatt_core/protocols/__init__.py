"""What crosses the boundary of engines and judges: their protocols, the batches, the tasks and receipts of actors."""
