"""Where prompts come from: JSON Lines, tables, saved datasets, reasoning-gym tasks; read row by row and split."""
