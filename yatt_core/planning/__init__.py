"""What a run would need on described devices, computed without loading anything: memory, placement and time."""
