"""The direct way of weights from the trainer's ranks to the rollout engines, over torch.distributed."""
