"""YATT's core: prompts, rewards, algorithms, engines and actors, usable without a workflow or a database."""

import os

# MKL reads this at its first call. Without it, the bits of a product's row depend on the number of rows on some
# processors, and rollout would not be batch-invariant.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
