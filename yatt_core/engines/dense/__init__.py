"""The fast path over dense Llama and Qwen models: which it covers, their weights fused, their layers' arithmetic."""
