"""Which phase of an iteration a call to an actor belongs to, and what most of its time is spent on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from yatt_core.spent_time import DATA, ENGINE, OTHER, WAITING, WEIGHTS

CONTROLLER = "controller"
ENDPOINT = "endpoint"
GENERATE = "generate"
"""Serves two phases, `collect` and `evaluate`; which of them, the version of the weights tells."""
PHASES: Mapping[str, str] = MappingProxyType(
    {
        "place": "place",
        "switch": "place",
        "evict": "collect",
        "give_up": "collect",
        "offload": "collect",
        "collect": "collect",
        "judge": "collect",
        "rest": "collect",
        "usage": "collect",
        "count_shards": "collect",
        "sample": "collect",
        "accumulate": "collect",
        "reload": "prepare",
        "prepare": "prepare",
        "pack_prepared": "prepare",
        "receive_prepared": "prepare",
        "learn": "learn",
        "skip": "learn",
        "sft": "sft",
        "serve_transfers": "sync",
        "sent_weights": "sync",
        "held_transfer": "sync",
        "version": "sync",
        "send": "sync",
        "receive": "sync",
        "begin_update": "sync",
        "take_digest": "sync",
        "evaluate": "evaluate",
        "copy_ahead": "checkpoint",
        "begin_checkpoint": "checkpoint",
        "tidy": "commit",
        "process_use": "commit",
    }
)
"""The phase that each call of an iteration is made in. A role's `switch` may also happen while `collect` is in progress."""
KINDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            (GENERATE, "judge", "sample", "accumulate", "prepare", "learn", "skip", "sft", "evaluate"), ENGINE
        ),
        **dict.fromkeys(("send", "receive", "begin_update", "take_digest"), WEIGHTS),
        **dict.fromkeys(("offload", "reload", "rest"), WEIGHTS),
        **dict.fromkeys(("copy_ahead", "begin_checkpoint", "pack_prepared", "receive_prepared", "tidy"), DATA),
    }
)


def kind_of_call(actor: str, method: str) -> str:
    """Returns the kind of a call's time outside named parts.

    actor: such as `controller-0`, which has no engine, or `endpoint-0`, which waits for one elsewhere.
    """
    role = actor.partition("-")[0]
    if role == CONTROLLER:
        return OTHER
    if role == ENDPOINT:
        return WAITING
    return KINDS.get(method, OTHER)


def version_part(version: int) -> str:
    """Returns the name of the part of a call that works with a version of the weights."""
    return f"version {version}"


def phase_of_call(path: tuple[str, ...], iteration: int) -> str | None:
    """Returns the phase of an iteration that a part of an actor's work belongs to; None if it is part of no iteration.

    path: the part's path, which begins with the method.
    """
    if path[0] != GENERATE:
        return PHASES.get(path[0])
    return "evaluate" if version_part(iteration) in path[:2] else "collect"
