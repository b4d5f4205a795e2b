"""Gates: what a run that waits for approval waits for, the links that decide it, and approved promotions."""
