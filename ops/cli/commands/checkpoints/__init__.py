"""Commands that work on kept checkpoints: `export`, `promote`, `aliases`."""
