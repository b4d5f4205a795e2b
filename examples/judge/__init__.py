"""A judge to try: a small model that learns from a run's own data to tell whether an answer is right.

`python -m examples.judge SPEC` writes it to the folder that the spec names.
"""
