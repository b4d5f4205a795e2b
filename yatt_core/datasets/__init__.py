"""Where prompts come from: JSON Lines, tables, saved datasets and reasoning-gym tasks, read row by row and split."""
