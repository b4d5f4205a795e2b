"""How the ranks of a trainer meet, and their collective operations."""
