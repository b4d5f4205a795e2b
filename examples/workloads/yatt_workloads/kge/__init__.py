"""Embeddings of knowledge graphs: NOTE (arXiv 2107.01892), with the models that it is an ensemble of."""
