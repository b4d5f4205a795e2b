"""Reward functions: found by name, called under a time limit, combined to a sample's score."""
