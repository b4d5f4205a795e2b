"""What is claimed of GPUs, checked claim by claim, on a machine that has torch, transformers, pyarrow and little else."""

from benchmarks.gpu.lacking import make_up

# Before anything of the product is imported, here and in the processes that are started from here.
make_up()
