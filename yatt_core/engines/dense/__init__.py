"""The fast path for dense Llama and Qwen models: which models it covers, their fused weights, their arithmetic."""
