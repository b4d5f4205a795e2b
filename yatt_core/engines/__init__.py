"""Engines that generate and engines that train (torch, vLLM, FSDP2, Megatron-Core, virtual), and their shared code."""
