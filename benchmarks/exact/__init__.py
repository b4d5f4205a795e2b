"""What exact runs need and cost, by engine, type and device: each cell is run, not declared."""
