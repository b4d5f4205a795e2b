"""How the ranks of a trainer meet, and what they compute together."""
