"""Gates: which questions a run must ask before it goes on."""
