"""Optimizer steps: the samples of each step, their advantages, losses and gradients."""
