"""What a run would need and take on described devices: memory, placement, time; computed, with nothing loaded."""
