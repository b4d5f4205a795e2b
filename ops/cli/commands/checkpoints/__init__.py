"""What is done with kept weights: `evaluate`, `export`, `promote`, `aliases`."""
