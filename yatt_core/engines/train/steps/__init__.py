"""Optimizer steps: which samples each takes, their advantages, the losses and gradients."""
