"""YATT's core: prompts, rewards, algorithms, engines and actors, usable without a workflow or a database."""
