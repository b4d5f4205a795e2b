"""The Ray actors of a run: controllers, dispatcher, rollout engines, trainer ranks, judges. All monitor the driver."""
