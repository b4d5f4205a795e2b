"""The rollout engine on plain torch: its decoding loop, its cache, and the two ways it runs models."""
