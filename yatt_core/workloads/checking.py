"""What a workload finds in the data of its settings before a run starts: an error minutes before `build_inputs` could raise it.

Consumes a spec and its workload; produces nothing, or the error. A class opts in by a method. Runs do not depend on it: they
build their inputs, and verify them, themselves.
"""

from __future__ import annotations

from yatt_core.spec.run import RunSpec
from yatt_core.workloads.contract import ChecksInputs, Workload
from yatt_core.workloads.finding import called


def check_inputs(spec: RunSpec, workload: Workload) -> None:
    """Raises `ConfigurationError` if the workload says that its inputs cannot be built."""
    if isinstance(workload, ChecksInputs):
        called(spec, workload.check_inputs)
