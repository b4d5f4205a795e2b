"""Part of `benchmarks.diffusion`, which `__main__.py` describes."""
