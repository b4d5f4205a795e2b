"""The Ray actors of a run: controllers, dispatcher, rollout engines, trainer ranks, judges; and their way to notice drivers."""
