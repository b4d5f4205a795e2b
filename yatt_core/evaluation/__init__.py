"""Answers to held-out tasks: how they are requested and scored, and what is estimated from them."""
