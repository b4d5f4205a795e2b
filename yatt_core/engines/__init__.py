"""What generates and what learns: torch, vLLM, FSDP2, Megatron-Core and virtual engines, and what they share."""
