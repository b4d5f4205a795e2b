"""Finds the class of a workload of one's own and calls it; its exceptions become errors that name the class and the line.

So does `SystemExit`: a class that exits must end neither a command nor a rank as if all were well. A full disk and a lack of
memory are no fault of the class, so that they become the errors that they are elsewhere.

Consumes a spec. Produces a workload, and the results of its methods. The class is vouched for by the digest of its source, as
all code is that a spec names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from yatt_core.algorithms.own import WORKLOADS, own_function, place_of, verify_source
from yatt_core.durable import FULL
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError, StorageFullError, YattError
from yatt_core.installed import error_place, failure_text
from yatt_core.spec.run import RunSpec
from yatt_core.workloads.contract import (
    Continues,
    RunFacts,
    Samples,
    SamplesApart,
    SavedState,
    SharesModel,
    ShowsImages,
    Workload,
)
from yatt_core.workloads.settings import concerns_settings, settings_error

R = TypeVar("R")
METHODS = ("build_inputs", "begin", "draw", "update", "evaluate", "state", "load")
READS_DATA = ("check_inputs", "build_inputs")
"""Methods whose `ValueError` says what is wrong with the user's data."""
RANKS = ("one", "any")
OUT_OF_MEMORY = "OutOfMemoryError"
"""The class of torch's exception for a device without free memory, which needs no import of torch here."""


def verify_workload(spec: RunSpec, run_folder: Path | None = None) -> None:
    """Raises `ConfigurationError` for a class that is missing, or whose source is not the one that the spec stands for.

    run_folder: folder of the run, which has its own copy of a file: this process executes it from now on.
    """
    verify_source(spec.workload, WORKLOADS, spec.is_exact, run_folder)


def shares_model(spec: RunSpec, run_folder: Path | None = None) -> bool:
    """Returns whether a spec's class has ranks that hold a model together. Raises `ConfigurationError` for none that is found."""
    found = own_function(spec.workload, WORKLOADS, run_folder)
    return isinstance(found, type) and issubclass(found, SharesModel)


def make_workload(spec: RunSpec, run_folder: Path | None = None, device: str = "cpu") -> Workload:
    """Returns a new workload of a spec.

    run_folder: as for `verify_workload`.

    Raises `ConfigurationError` for a class that cannot be found, lacks a method, has images but no samples, refuses its settings,
    trains on one rank only while the trainer has several, cannot be sampled by samplers while the spec has some, or cannot begin
    with another run's state while the spec names one.
    """
    found = own_function(spec.workload, WORKLOADS, run_folder)
    place = place_of(spec.workload, WORKLOADS)
    missing = [name for name in METHODS if not callable(getattr(found, name, None))]
    if not isinstance(found, type) or missing:
        lacking = ", ".join(missing) or "a class is expected"
        raise ConfigurationError(f"{place}: is no workload: missing: {lacking}; see docs/workloads.md")
    if (ranks := getattr(found, "ranks", None)) not in RANKS:
        raise ConfigurationError(f"{place}: its ranks are {ranks!r}; expected one of {', '.join(RANKS)}")
    if ranks == "one" and spec.trainer.engine.ranks > 1:
        raise ConfigurationError(
            f"trainer.engine.ranks: {spec.workload.title} trains on one rank only; expected 1 (given: "
            f"{spec.trainer.engine.ranks})"
        )
    if _has_images_alone(found):
        raise ConfigurationError(
            f"{place}: has a method images but no method sample; images are those of samples: give it sample, or leave images out"
        )
    if spec.has.samplers and not issubclass(found, SamplesApart):
        raise ConfigurationError(
            f"workload.sampled_by: {spec.workload.title} cannot be sampled by processes of their own, since it lacks methods of "
            "SamplesApart (see docs/workloads.md); use trainer"
        )
    if spec.has.samplers and issubclass(found, SharesModel):
        raise ConfigurationError(
            f"workload.sampled_by: {spec.workload.title} divides its model over the trainer's ranks, but samplers get whole "
            "weights; use trainer"
        )
    start = spec.workload.start
    if start is not None and not issubclass(found, Continues):
        raise ConfigurationError(
            f"workload.start: {spec.workload.title} cannot begin with the state of another run, since it has no method "
            "continue_from; use null"
        )
    folder = spec.workload.folder
    facts = RunFacts(
        seed=spec.seed,
        settings=spec.workload.settings | spec.workload.tunable,
        iterations=spec.iterations,
        device=device,
        folder=None if folder is None else Path(folder),
        checkpoint_every=spec.checkpoints.every,
        continues=start is not None,
        tunable=frozenset(spec.workload.tunable),
        models={name: Path(model.path) for name, model in spec.workload.models.items()},
        sampler_dtype=str(getattr(spec.rollout.engine, "dtype", "float32")) if spec.has.samplers else None,
    )
    try:
        made: Workload = found(facts)
    except YattError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ValidationError) and concerns_settings(error, facts.settings):
            raise settings_error(error, facts.tunable) from None
        raise _failure(f"workload.settings: {spec.workload.title} refuses them", error) from error
    return made


def _has_images_alone(found: type) -> bool:
    """Returns whether a class has images of samples that it does not draw."""
    return issubclass(found, ShowsImages) and not issubclass(found, Samples)


def called(spec: RunSpec, method: Callable[..., R], *given: Any) -> R:
    """Returns what a workload's method returns.

    Raises `ConfigurationError` for an exception of its own code, `StorageFullError` for a full disk, and `InfrastructureError`
    for a lack of memory. What is wrong with the data of the settings is said without the place in the code; a subclass of
    `ValueError`, such as a decoder's, is not about the data alone and keeps it.
    """
    try:
        return method(*given)
    except YattError:
        raise
    except (Exception, SystemExit) as error:
        if type(error) is ValueError and method.__name__ in READS_DATA:
            text = failure_text(error).removeprefix("ValueError: ")
            raise _error(f"workload.settings: {text}", error) from error
        raise _failure(f"{place_of(spec.workload, WORKLOADS)}: {method.__name__} failed", error) from error


def continue_from(
    spec: RunSpec, call: Callable[[Callable[..., None], SavedState], None], begun: Continues, saved: SavedState
) -> None:
    """Has a workload that has begun take over another run's state.

    call: calls a method of the workload, as `called` does.

    Raises `ConfigurationError` for a state that the class cannot go on with, which names `workload.start`; else as `call` does.
    """
    try:
        call(begun.continue_from, saved)
    except (ConfigurationError, DataError) as error:
        assert spec.workload.start is not None, "there is a state to go on with"
        raise ConfigurationError(
            f"workload.start.path: {spec.workload.start.path}: {spec.workload.title} cannot go on with it: {error}"
        ) from error


def _failure(what: str, error: Exception | SystemExit) -> YattError:
    """Returns the error of an exception in a workload's code. what: what has failed, for messages."""
    return _error(f"{what}: {error_place(error)}: {failure_text(error)}", error)


def _error(said: str, error: Exception | SystemExit) -> YattError:
    """Returns the error that an exception is, with its whole message."""
    if any(os.strerror(number) in said for number in FULL):  # libraries in other languages do not raise OSError
        return StorageFullError(f"{said}; free some space")
    if isinstance(error, MemoryError) or type(error).__name__ == OUT_OF_MEMORY:
        return InfrastructureError(said)
    return ConfigurationError(said)
