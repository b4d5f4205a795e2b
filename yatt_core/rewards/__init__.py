"""Reward functions: looked up by name, called under a time limit, and combined into a sample's score."""
