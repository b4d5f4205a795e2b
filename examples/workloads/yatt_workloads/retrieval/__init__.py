"""Dense retrieval: a dual encoder that learns from its own late interaction and from a cross-encoder (arXiv 2205.09153)."""
