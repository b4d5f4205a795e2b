"""Turns of responses with tools: each for itself, or with a barrier behind each turn of a decode batch."""
