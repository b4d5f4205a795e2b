"""Hugging Face folders: creates, checks, describes and loads models and tokenizers."""
