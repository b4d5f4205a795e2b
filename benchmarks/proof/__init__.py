"""Shows that a run killed twice ends like an undisturbed one; run it with `make proof`.

Both runs are real: Prefect, Ray, torch engines, the ledger and MLflow train a small model from the same spec and
seed. One of them is killed with SIGKILL at random moments, once while it collects and once while it learns.
"""
