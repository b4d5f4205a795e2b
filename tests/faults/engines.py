"""Faulty engines: wraps the engines built by `yatt_core.engines.registry` in the processes of a run's actors."""

from __future__ import annotations

import time
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.faults import claims_hang, claims_hold, is_not_finite


def add_faults(registry: ModuleType) -> None:
    """Makes the registry build engines that look for faults in their run's folder; most faults are for virtual ones."""
    build_rollout_engine = registry.build_rollout_engine
    build_train_engine = registry.build_train_engine

    def rollout_engine(spec: Any, model_path: str, inputs_folder: Path, spanned: Any = None) -> Any:
        engine = build_rollout_engine(spec, model_path, inputs_folder, spanned)
        return _hanging(engine, inputs_folder.parent) if spec.virtual else engine

    def train_engine(spec: Any, context: Any) -> Any:
        engine = _held(build_train_engine(spec, context), context.run_folder)
        return _not_finite(engine, context.run_folder) if spec.virtual else engine

    registry.build_rollout_engine = rollout_engine
    registry.build_train_engine = train_engine  # type: ignore[attr-defined]


def _hanging(engine: Any, run_folder: Path) -> Any:
    answer = engine.answer

    def answer_or_hang(request: Any) -> Any:
        if claims_hang(run_folder, request.weight_version):
            hang()
        return answer(request)

    engine.answer = answer_or_hang
    return engine


def _held(engine: Any, run_folder: Path) -> Any:
    freeze = engine.freeze_state

    def freeze_after_hold() -> Any:
        while claims_hold(run_folder, engine.version):
            time.sleep(0.05)
        return freeze()

    engine.freeze_state = freeze_after_hold
    return engine


def _not_finite(engine: Any, run_folder: Path) -> Any:
    from yatt_core.errors import NumericError

    learn = engine.learn

    def learn_or_fail(task: Any, prepared: Any) -> Any:
        if engine.version == task.key.iteration - 1 and is_not_finite(run_folder, task.key.branch, task.key.iteration):
            raise NumericError(f"{task.key}: the loss is nan, as requested by the test")
        return learn(task, prepared)

    engine.learn = learn_or_fail
    return engine


def hang() -> None:
    """Never returns."""
    while True:
        time.sleep(60.0)
