"""What the peers have in common: model, data, learning-rate schedule, iterations, low-rank adapters, checkpoints.

Consumes a draft and options. Writes into the draft. Raises `ConfigurationError` for what has to be asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ops.starter.peers.draft import Draft
from ops.starter.peers.files import REST
from ops.starter.peers.hydra import DELETES
from ops.starter.peers.places import TranslationOptions, model_of
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError
from yatt_core.spec.sections.data import DataSpec
from yatt_core.spec.sections.rollout import RolloutSpec
from yatt_core.spec.sections.trainer import TorchTrainer

ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SPEED = "it changes speed or memory, not what is learnt; YATT has settings of its own (docs/spec.md)"
LAUNCH = "how the peer is started; YATT starts its own processes"
MEMORY_ONLY = "where the peer keeps files; a run of YATT has a folder of its own"
PART_OF_SOURCES = "part of data.sources"
MICRO_BATCH = "trainer.engine.micro_batch_tokens"
FIRST_STEP = (
    "it rises from 0 there, and from 1/{count} of the peak here: until its end it is 1/{count} of the peak higher"
)


def model(draft: Draft, key: str, options: TranslationOptions, revision: str | None = None) -> None:
    """Writes the policy's model."""
    name = draft[key]
    if options.model is not None:
        draft.write("model", options.model)
        if draft.given(key):
            draft.differs(key, "--model takes its place", {})
        return
    if not isinstance(name, str):
        raise ConfigurationError(f"{draft.file}: {key} is missing; name the model with --model")
    no_variable(draft, key)
    draft.takes(key, {"model": model_of(name, options.folder, revision)})


def no_variable(draft: Draft, key: str) -> None:
    """Refuses a text with something in it that only a shell or Hydra can know."""
    for text in draft[key] if isinstance(draft[key], list) else [draft[key]]:
        if isinstance(text, str) and ("$" in text or "`" in text):
            draft.refuse(key, "its value is known only where the script runs; write it into the file")


def sources(
    draft: Draft, keys: Sequence[str], found: Sequence[dict[str, Any]], options: TranslationOptions, why: str = ""
) -> None:
    """Writes the sources of the data, and the verdict on the keys that name them.

    keys: the first names the data; the others say which of its rows, or what these contain.
    """
    if options.sources:
        draft.write("data.sources", [dict(source) for source in options.sources])
        for key in keys:
            if draft.given(key):
                draft.differs(key, "--data takes its place; what its rows contain was recognised from them")
        return
    if not found:
        raise ConfigurationError(f"{draft.file}: {keys[0]} is missing; name the data with --data")
    no_variable(draft, keys[0])
    draft.takes(keys[0], {"data.sources": list(found)}, why)
    for key in keys[1:]:
        draft.takes(key, {}, PART_OF_SOURCES)


def rows(draft: Draft, key: str, options: TranslationOptions) -> int:
    """Returns the number of training rows, which a number of epochs counts in."""
    found = options.count_rows(draft.tree["data"]["sources"])
    if not found:
        draft.refuse(key, "it counts passes over the rows, whose number is not known here; say it with --rows")
    return found


def iterations(draft: Draft, steps: int, per_iteration: int, key: str) -> dict[str, Any]:
    """Returns the number of iterations that a number of the peer's steps is.

    per_iteration: optimizer steps of an iteration.
    """
    if steps % per_iteration:
        draft.refuse(key, f"an iteration has {per_iteration} optimizer steps; expected a multiple of them")
    count = steps // per_iteration
    return {"iterations": count}


def epochs(count: float, rows_of_data: int, per_iteration: int, whole_only: bool = True) -> int:
    """Returns the iterations in a number of passes over the rows.

    whole_only: whether the last, smaller batch of a pass is left out.
    """
    in_pass = rows_of_data // per_iteration if whole_only else math.ceil(rows_of_data / per_iteration)
    return max(1, math.ceil(count * max(1, in_pass)))


def warmup(draft: Draft, key: str, steps: int, per_iteration: int) -> None:
    """Writes a warmup of a number of the peer's steps."""
    if not steps:
        draft.takes(key, {}, "no warmup, as in YATT by default")
        return
    count = math.ceil(steps / per_iteration)
    why = FIRST_STEP.format(count=count)
    if per_iteration > 1:
        why = f"{many(steps, 'optimizer step')}, {per_iteration} in an iteration; the rate is constant within an iteration"
    draft.differs(key, why, {"trainer.schedule.lr_warmup_iterations": count})


def lora(draft: Draft, rank: int, targets: Any, names: tuple[str, str, str]) -> None:
    """Writes low-rank adapters.

    names: the keys of rank, scale and layers.
    """
    if targets in ("all-linear", ["all-linear"]):
        targets = ALL_LINEAR
    draft.write("trainer.lora.rank", rank)
    draft.takes(names[0], {"trainer.lora.rank": rank})
    draft.takes(names[1], {"trainer.lora.alpha": draft.real(names[1])})
    listed = [targets] if isinstance(targets, str) else list(targets)
    if any(re.search(r"[^\w]", str(one)) for one in listed):
        draft.refuse(names[2], "expected names of layers, such as q_proj")
    draft.takes(names[2], {"trainer.lora.targets": listed})


def surroundings(draft: Draft) -> None:
    """Lists what stands around the run's own keys: how it is launched, and its environment."""
    for entry in draft.unlisted():
        if entry.key == REST:
            draft.lacks(REST, "arguments that the script is given when it is started; add them to the file")
        elif entry.key.startswith("export "):
            draft.lacks(entry.key, "an environment variable; YATT's are in docs/operations.md")
        elif " " in entry.key:
            draft.lacks(entry.key, LAUNCH)
    deletions(draft)


def deletions(draft: Draft) -> None:
    """Lists keys that the file deletes, which are unset by default; what a peer does without others is not known here."""
    for key in draft.deleted():
        deleted = f"{DELETES}{key}"
        default = draft.default(key)
        if draft.below(key):
            draft.refuse(deleted, "other lines give keys below it; keep one of them")
        if default not in (None, {}):
            draft.refuse(
                deleted, f"what {draft.label} does without this key is not known here; write a value, or leave it out"
            )
        if draft[deleted] not in (None, default):
            draft.refuse(
                deleted, f"Hydra deletes it only if it has this value, and it is {default!r} by default; leave it out"
            )
        if draft.knows(key):
            draft.takes(deleted, {}, "deleted, and unset by default as well")


def off(draft: Draft, keys: Mapping[str, Any]) -> None:
    """Refuses what would change what is learnt and has no counterpart, unless it is off.

    keys: each with the value that it has if it is off.
    """
    for key, value in keys.items():
        if draft[key] not in (value, None, False):
            draft.refuse(
                key,
                f"without a counterpart here, the run would learn something else; {value!r} in a copy of the file goes on",
            )
        draft.takes(key, {}, "off, as in YATT")


def decay(draft: Draft, key: str) -> None:
    """Writes a weight decay of a peer that exempts biases and norms."""
    value = draft.real(key)
    to = {"trainer.optimizer.weight_decay": value}
    if value:
        draft.differs(key, "biases and norms are exempt there, and decay as all weights do here", to)
    else:
        draft.takes(key, to)


def norm_bound(draft: Draft, key: str) -> float:
    """Returns the bound of the gradient's norm; refuses 0 and null, which are none to some peers."""
    bound = 0.0 if draft[key] is None else draft.real(key)
    if not bound:
        draft.refuse(
            key,
            "no bound of the gradient's norm there, and YATT has one in any case; one that no gradient reaches, such as 1e9, in "
            "a copy of the file means the same",
        )
    return bound


def longest(draft: Draft) -> int:
    """Returns the most tokens of a response with its prompt, by what is written so far."""
    prompt = draft.tree.get("data", {}).get("max_prompt_tokens", DataSpec.model_fields["max_prompt_tokens"].default)
    response = draft.tree.get("rollout", {}).get("max_new_tokens", RolloutSpec.model_fields["max_new_tokens"].default)
    return int(prompt + response)


def micro_batch(draft: Draft, key: str, tokens: int, why: str = "") -> None:
    """Writes the tokens of a micro-batch, which has room for the longest response; they do not change what is learnt."""
    room = longest(draft)
    if tokens < room:
        why = f"a response with its prompt may have {room} tokens, and a micro-batch has room for one"
    draft.takes(key, {MICRO_BATCH: max(tokens, room)}, why)


def room_for_one(draft: Draft) -> None:
    """Writes larger micro-batches where the longest response would not fit into YATT's default."""
    room = longest(draft)
    engine = draft.tree["trainer"]["engine"]
    if engine.get("micro_batch_tokens", TorchTrainer.model_fields["micro_batch_tokens"].default) < room:
        draft.write(MICRO_BATCH, room)
        draft.notes(
            "tokens of a micro-batch",
            "any",
            f"trainer.engine.micro_batch_tokens is {room}, so that one response has room",
        )


def tracking(draft: Draft, key: str, value: Any) -> None:
    """Lists trackers: YATT's own needs no account, and the others need what only their owner has."""
    asked = [value] if isinstance(value, str) else list(value or [])
    others = [one for one in asked if one not in ("console", "none", "mlflow", "file")]
    if not others:
        draft.takes(key, {}, "metrics are in the ledger, in MLflow and on the dashboard")
        return
    draft.differs(
        key,
        f"{', '.join(map(str, others))}: a run is in MLflow; tracking.trackers adds tensorboard and wandb, which needs a key",
    )


def saves(draft: Draft, key: str, every: int, per_iteration: int = 1) -> None:
    """Writes the interval between checkpoints; YATT always takes some, since it continues from them.

    every: in the peer's steps; none or less than 1 for a peer that saves at the end only.
    """
    if every < 1:
        draft.differs(
            key, "checkpoints are taken every 20 iterations here, and at the end, since a run continues from them"
        )
        return
    draft.takes(key, {"checkpoints.every": max(1, every // per_iteration)}, _rounded(every, per_iteration))


def evaluates(draft: Draft, key: str, every: int, per_iteration: int = 1) -> None:
    """Writes the interval between evaluations; 0 or less for none."""
    if every < 1:
        draft.differs(key, "the first and the last iteration are evaluated in any case", {"evaluation.every": 0})
        return
    draft.takes(key, {"evaluation.every": max(1, every // per_iteration)}, _rounded(every, per_iteration))


def _rounded(every: int, per_iteration: int) -> str:
    if every % per_iteration == 0:
        return "" if per_iteration == 1 else f"{many(every, 'optimizer step')}, {per_iteration} in an iteration"
    return f"{many(every, 'optimizer step')}, {per_iteration} in an iteration; rounded down"
