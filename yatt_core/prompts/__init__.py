"""Prompts and responses as text, images and tokens: drawing order, codec, format of tool calls."""
