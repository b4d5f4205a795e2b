"""The rollout engine on vLLM, stepped in this process."""
