"""What rows mean: pure functions from the first rows of a data set to the keys, the objective and the reward of a spec."""
