"""The Megatron-Core trainer: tensor, pipeline and data parallel."""
