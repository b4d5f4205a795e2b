"""Reinforcement learning of diffusion models: sampling with log-probabilities, losses, networks in diffusers' layout.

A library of pure functions over tensors, and one workload over it (`drawing.py`). Nothing imports diffusers before a network is
made or loaded.
"""
