"""What crosses the boundary of engines and judges: their protocols, decode batches, and actors' tasks and receipts."""
