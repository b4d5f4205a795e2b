"""The state of a workload in a checkpoint, and its digest.

Consumes a `State`, whose tensors may be divided over the ranks by rows. Produces the parts that a rank contributes to a
checkpoint or to a transfer, and the digest of the weights, which does not depend on how they are divided. The checkpoint's
subfolders are `weights` and `others`; `workload.json` holds the version and the facts. `workloads.saved` reads them again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.digests import WeightsDigest
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.errors import ConfigurationError, NumericError
from yatt_core.wire.parts import TensorPart
from yatt_core.workloads.contract import Rows, State

Named = Mapping[str, torch.Tensor | Rows]
KEPT_TYPES = frozenset(
    {
        torch.float16, torch.float32, torch.float64, torch.bool, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    }
)  # fmt: skip
"""Types that both numpy and safetensors have."""


def require_sound(state: State, kind: str) -> None:
    """Raises `ConfigurationError` for a state that cannot be kept.

    That is no `State`, or one without weights, with nameless tensors, with tensors that have no numbers or are in bfloat16 or
    float8, or with facts that JSON does not give back.

    kind: the workload's name, for messages.
    """
    if not isinstance(state, State) or not all(
        isinstance(each, Mapping) for each in (state.weights, state.others, state.facts)
    ):
        found = type(state).__name__
        raise ConfigurationError(
            f"workload.kind: {kind}: state returned {found}; expected a State of the contract, whose weights, others and facts "
            "are mappings"
        )
    if not state.weights:
        raise ConfigurationError(f"workload.kind: {kind}: its state has no weights; expected at least one tensor")
    for name, held in (*state.weights.items(), *state.others.items()):
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ConfigurationError(
                f"workload.kind: {kind}: state returned a tensor called {name!r:.100}; expected a text of at least one "
                "character, all of them printable"
            )
        values = held.values if isinstance(held, Rows) else held
        if isinstance(values, torch.Tensor) and values.is_meta:
            raise ConfigurationError(
                f"workload.kind: {kind}: {name!r} of its state is a meta tensor, which has no numbers; expected one on a device"
            )
        if not isinstance(values, torch.Tensor) or values.dtype not in KEPT_TYPES or values.layout is not torch.strided:
            found = f"{values.dtype}, {values.layout}" if isinstance(values, torch.Tensor) else type(values).__name__
            raise ConfigurationError(
                f"workload.kind: {kind}: {name!r} of its state is {found}; expected a dense tensor of booleans, integers or "
                "floating-point numbers, neither bfloat16 nor float8"
            )
    for name, fact in state.facts.items():
        try:
            again = json.loads(json.dumps({name: fact}, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"workload.kind: {kind}: the facts of its state are no JSON: {name!r}: {error}"
            ) from error
        if again != {name: fact}:
            raise ConfigurationError(
                f"workload.kind: {kind}: the facts of its state are no JSON: {name!r} would become {again}; expected texts as "
                "names, and lists instead of tuples"
            )


@dataclass(frozen=True, slots=True)
class NotFinite:
    """The names of tensors that are not finite from the start, as far as a rank holds them, so that an update may leave them so.

    infinite: those with infinite values, such as a mask that is kept with the weights; NaN in them is still an error.
    undefined: those with NaN, which may have any value.
    """

    infinite: frozenset[str] = frozenset()
    undefined: frozenset[str] = frozenset()


def not_finite_in(weights: Named) -> NotFinite:
    """Returns which tensors are not finite."""
    bounds = {name: _bounds(held) for name, held in weights.items()}
    return NotFinite(
        infinite=frozenset(name for name, found in bounds.items() if any(map(math.isinf, found))),
        undefined=frozenset(name for name, found in bounds.items() if any(map(math.isnan, found))),
    )


def require_finite(weights: Named, before: NotFinite, collective: Collective, place: str) -> None:
    """Raises `NumericError`, on every rank, if an update has left weights that are not finite. Every rank must call it.

    before: the tensors that were not finite before the first update.
    place: the workload, for messages.
    """
    found = ""
    for name in sorted(weights.keys() - before.undefined):
        wrong = math.isnan if name in before.infinite else _is_not_finite
        if any(map(wrong, _bounds(weights[name]))):
            found = name
            break
    everyone = [bytes(each).decode() for each in collective.gathered(found.encode())]
    if bad := min((name for name in everyone if name), default=""):
        raise NumericError(f"{place}: update left values in the weights {bad!r} that are not finite")


def _bounds(held: torch.Tensor | Rows) -> tuple[float, ...]:
    """Returns the least and the greatest of the floating-point numbers that a rank holds, NaN if one is; empty if it holds none.

    It takes one pass, and no memory but for these two.
    """
    values = (held.values if isinstance(held, Rows) else held).detach()
    if not values.numel() or not values.is_floating_point():
        return ()
    return tuple(bound.item() for bound in values.aminmax())


def _is_not_finite(value: float) -> bool:
    return not math.isfinite(value)


def parts_of(named: Named, rank: int, ranks: int) -> Iterator[TensorPart[torch.Tensor]]:
    """Yields the parts that a rank holds, in the order of the names, in which all ranks list what they hold together."""
    everyone = tuple(range(ranks))
    for name in sorted(named):
        held = named[name]
        if isinstance(held, Rows):
            values = held.values.detach()
            if len(values) or not held.total:
                shape = (held.total, *values.shape[1:])
                offsets = (held.start, *(0 for _ in values.shape[1:]))
                yield TensorPart(name=name, shape=shape, offsets=offsets, values=values, holders=(rank,))
        else:
            values = held.detach()
            offsets = (0,) * values.ndim
            yield TensorPart(name=name, shape=tuple(values.shape), offsets=offsets, values=values, holders=everyone)


def digest_of_weights(weights: Named, collective: Collective) -> str:
    """Returns the digest of the whole weights, on every rank. Every rank must call it.

    Raises `ConfigurationError` if the ranks' rows do not make up a tensor.
    """
    found = WeightsDigest()
    for name in sorted(weights):
        whole = whole_tensor(name, weights[name], collective)
        found.begin(name, whole.dtype.name, whole.shape)
        found.add(np.ascontiguousarray(whole))
    return found.hexdigest()


def whole_tensor(name: str, held: torch.Tensor | Rows, collective: Collective) -> npt.NDArray[Any]:
    """Returns a whole tensor, on every rank. Every rank must call it. Raises as `digest_of_weights` does."""
    if isinstance(held, Rows):
        return _gathered(name, held, collective)
    found: npt.NDArray[Any] = held.detach().cpu().numpy()
    return found


def _gathered(name: str, held: Rows, collective: Collective) -> npt.NDArray[Any]:
    """Returns a tensor that the ranks hold by rows."""
    own = np.ascontiguousarray(held.values.detach().cpu().numpy())
    places = collective.gathered(np.array([held.start, len(own)], np.int64).tobytes())
    spans = [tuple(np.frombuffer(place, np.int64).tolist()) for place in places]
    at = 0
    for start, count in spans:
        if start != at:
            raise ConfigurationError(
                f"workload.kind: the ranks hold the rows {spans} of {name!r}; expected all, in order"
            )
        at += count
    if at != held.total:
        raise ConfigurationError(f"workload.kind: the ranks hold {at} rows of {name!r}; expected {held.total}")
    blocks = collective.gathered(own.tobytes())
    return np.concatenate([np.frombuffer(block, own.dtype).reshape(-1, *own.shape[1:]) for block in blocks])


def encode_facts(version: int, facts: Mapping[str, Any]) -> bytes:
    """Returns the contents of `workload.json`."""
    return (json.dumps({"version": version, "facts": dict(facts)}, indent=1, sort_keys=True) + "\n").encode()
