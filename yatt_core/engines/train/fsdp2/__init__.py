"""The FSDP2 trainer: a model of transformers whose tensors are sharded over the ranks."""
