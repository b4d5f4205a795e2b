"""Rollout engines that run in a process and an environment of their own, whatever engine it is."""
