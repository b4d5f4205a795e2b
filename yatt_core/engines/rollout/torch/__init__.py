"""The rollout engine on plain torch: its decoding loop, its cache, and the two runners of models."""
