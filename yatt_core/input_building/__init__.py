"""Input building."""
