"""The whole quickstart beside TRL's GRPOTrainer on the same task, model and cores."""
