"""Makes a run's inputs: prompts from datasets, the initial model, trained judges; and checks that they fit together."""
