"""YATT's core: prompts, rewards, algorithms, engines and actors, usable without a workflow or a database."""

import os

# MKL reads this at its first call. Without it, the bits of a product's row depend on the number of rows on some
# processors, and rollout would not be batch-invariant.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
# Ray reads this when it is imported. Without it, a call in a thread while another one connects to the run's cluster would
# start a cluster of its own, to which the process would then be connected.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
# MLflow reads this when it is imported, by us or by another library. Without it, it leaves an installation's number in the
# user's home folder and reports its use.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
