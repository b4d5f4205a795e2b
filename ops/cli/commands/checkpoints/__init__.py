"""Commands that work on kept checkpoints: `evaluate`, `export`, `promote`, `aliases`."""
