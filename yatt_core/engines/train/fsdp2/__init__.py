"""The FSDP2 trainer: a transformers model whose tensors are sharded over the ranks."""
