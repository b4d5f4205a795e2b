"""Reward files that `yatt init` copies."""
