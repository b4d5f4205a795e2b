"""The Python API of YATT: long RLHF training jobs that survive failures.

    import yatt

    spec = yatt.Spec.load("configs/quickstart.yaml", {"iterations": 20})
    run = yatt.train(spec)
    print(run.metrics(pandas=True).tail())

The names below are the API; docs/python.md describes them. They are imported on first use, so that the command line, which
begins here too, responds at once.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

_FOLDER = Path(__file__).parent
if not (_FOLDER / "flows").is_dir():  # a checkout, where the parts lie beside this folder
    from yatt.checkout import install

    install(_FOLDER.parent)

if TYPE_CHECKING:
    from yatt import errors
    from yatt.callbacks import Callback, Commit, End
    from yatt.driving import fork, resume, train
    from yatt.planning import PlanResult, plan
    from yatt.run import Export, Run, State, find, runs
    from yatt.spec import Spec

_HOMES = {
    "Callback": "callbacks",
    "Commit": "callbacks",
    "End": "callbacks",
    "Export": "run",
    "PlanResult": "planning",
    "Run": "run",
    "Spec": "spec",
    "State": "run",
    "errors": "errors",
    "find": "run",
    "fork": "driving",
    "plan": "planning",
    "resume": "driving",
    "runs": "run",
    "train": "driving",
}
"""The module of each name."""

__all__ = [
    "Callback",
    "Commit",
    "End",
    "Export",
    "PlanResult",
    "Run",
    "Spec",
    "State",
    "errors",
    "find",
    "fork",
    "plan",
    "resume",
    "runs",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports a name of the API. Raises `AttributeError` for any other name."""
    if name not in _HOMES:
        raise AttributeError(f"module 'yatt' has no attribute {name!r}; its names: {', '.join(__all__)}")
    module = import_module(f"{__name__}.{_HOMES[name]}")
    value = module if name == _HOMES[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Returns the names of the API."""
    return list(__all__)
