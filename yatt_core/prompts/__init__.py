"""Prompts and responses as text, images and tokens: the order they are drawn in, the codec, the form of tool calls."""
