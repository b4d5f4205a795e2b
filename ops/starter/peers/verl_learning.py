"""verl's optimizer and the schedule of its learning rate, of torch's engines and of Megatron.

Consumes a draft with verl's keys. Writes into the draft. Raises `ConfigurationError`.
"""

from __future__ import annotations

from ops.starter.peers import common
from ops.starter.peers.draft import Draft

ACTOR = "actor_rollout_ref.actor"


def optimizer(draft: Draft, prefix: str) -> None:
    """Writes the optimizer: AdamW."""
    name = draft[f"{prefix}.optimizer"]
    if name not in (None, "AdamW"):
        draft.refuse(f"{prefix}.optimizer", "YATT has AdamW alone; expected AdamW")
    draft.takes(f"{prefix}.optimizer", {}, "AdamW, as in YATT")
    draft.takes(f"{prefix}.lr", {"trainer.optimizer.learning_rate": draft.real(f"{prefix}.lr")})
    draft.takes(f"{prefix}.betas", {"trainer.optimizer.betas": list(draft[f"{prefix}.betas"])})
    draft.takes(f"{prefix}.weight_decay", {"trainer.optimizer.weight_decay": draft.real(f"{prefix}.weight_decay")})
    clip = f"{prefix}.clip_grad"
    old = f"{ACTOR}.grad_clip"
    if draft.given(old) and prefix.startswith(ACTOR):
        draft.differs(old, f"verl reads {clip} in its place, {draft[clip]!r} here")
    draft.takes(clip, {"trainer.optimizer.max_grad_norm": draft.real(clip)})


def schedule(draft: Draft, prefix: str, total: int, iterations: int) -> None:
    """Writes the schedule of the learning rate.

    total: iterations over which verl's schedule stretches.
    iterations: those of the run, which may end earlier.
    """
    kind = f"{prefix}.lr_scheduler_type"
    steps = f"{prefix}.lr_warmup_steps"
    ratio = f"{prefix}.lr_warmup_steps_ratio"
    if draft.given(f"{prefix}.warmup_style") and draft[f"{prefix}.warmup_style"] is not None:
        draft.refuse(f"{prefix}.warmup_style", "an older name; write lr_scheduler_type")
    if is_megatron(draft):
        _megatrons_schedule(draft, prefix, total, iterations)
    else:
        if draft[kind] not in ("constant", "cosine"):
            draft.refuse(kind, "expected constant or cosine")
        _kind(draft, kind, total, iterations)
        least = f"{prefix}.min_lr_ratio"
        cycles = f"{prefix}.num_cycles"
        if draft[kind] == "cosine":
            draft.takes(
                least, {"trainer.schedule.min_lr_ratio": draft.real(least) if draft[least] is not None else 0.0}
            )
            if draft[cycles] not in (None, 0.5):
                draft.refuse(cycles, "YATT's cosine has one descent; expected 0.5")
        for key in (least, cycles):
            if draft[kind] != "cosine" or key == cycles:
                draft.takes(key, {}, f"as {draft[kind]} has it")
    first = draft.number(steps, -1)
    if first > 0:
        common.warmup(draft, steps, first, 1)
        draft.takes(ratio, {}, "without effect beside lr_warmup_steps")
        return
    draft.takes(steps, {}, "lr_warmup_steps_ratio decides")
    common.warmup(draft, ratio, int(draft.real(ratio) * total), 1)


def _kind(draft: Draft, key: str, total: int, iterations: int) -> None:
    """Writes the shape of the schedule, which ends with the run here.

    total, iterations: as for `schedule`.
    """
    to = {"trainer.schedule.kind": draft[key]}
    if iterations < total and draft[key] != "constant":
        why = (
            f"the rate falls over {total:,} iterations there, of which the run has {iterations:,}; here until its end, unless "
            f"iterations is {total} and `yatt train --until {iterations}` ends it"
        )
        draft.differs(key, why, to)
    else:
        draft.takes(key, to)


def _megatrons_schedule(draft: Draft, prefix: str, total: int, iterations: int) -> None:
    """Writes the kind of the schedule, for which Megatron has keys of its own."""
    style = f"{prefix}.lr_decay_style"
    least = f"{prefix}.min_lr"
    if draft[style] not in ("constant", "cosine", "linear"):
        draft.refuse(style, "expected constant, cosine or linear")
    if draft[f"{prefix}.lr_decay_steps"] is not None:
        draft.refuse(f"{prefix}.lr_decay_steps", "the rate falls until the last iteration here; expected null")
    _kind(draft, style, total, iterations)
    if draft[style] == "constant":
        draft.takes(least, {}, "constant does not read it")
    else:
        share = draft.real(least) / draft.real(f"{prefix}.lr")
        draft.takes(least, {"trainer.schedule.min_lr_ratio": share}, "as a part of the peak")
    for key in ("lr_scheduler_type", "min_lr_ratio", "num_cycles"):
        draft.takes(f"{prefix}.{key}", {}, "Megatron reads lr_decay_style and min_lr in its place")


def is_megatron(draft: Draft) -> bool:
    """Returns whether Megatron trains."""
    key = f"{ACTOR}.strategy"
    named = "megatron" in str(draft["--config-name"]) or bool(draft.below(f"{ACTOR}.megatron"))
    return bool(draft[key] == "megatron" or (named and not draft.given(key)))
