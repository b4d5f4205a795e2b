"""The torch trainer: a whole model on every rank, with a fast path for dense models."""
