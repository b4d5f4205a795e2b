"""Models and datasets of the Hugging Face Hub: resolved to a commit once, fetched whole or not at all, and checked by digest."""
