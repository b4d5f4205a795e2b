"""Hugging Face folders: made, checked, described and loaded; tokenizers."""
