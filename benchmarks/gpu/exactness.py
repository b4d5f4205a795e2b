"""Checks of what exactness on a GPU needs: kernels that repeat, batches that repeat, and runs that resume.

Consumes this process's GPU. The contract is that of `benchmarks.exact`, with a larger model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from benchmarks.exact.contract import resumed_run_is_the_same, rows_of, smallest_differing_batch
from benchmarks.exact.work import VOCABULARY
from benchmarks.gpu.claims import Finding, Place
from benchmarks.gpu.courses import Alone, started
from benchmarks.gpu.places import new_folder, sizes_at
from benchmarks.gpu.work import TRAINERS, model_in, request_of, spec_of
from yatt_core.engines.device import own_device, repeat_bits
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.protocols.engines import RolloutEngine

TIMES = 10
REFUSAL = "deterministic"
"""What torch says of an operation that has no kernel that repeats."""
SIDE = {False: 1024, True: 64}
"""A matrix's side, by whether cores stand in."""


def sums_repeat(place: Place) -> Finding:
    """Computes each operation several times, from the same numbers in other memory."""
    device = own_device()
    repeat_bits(device)
    differing = []
    operations = _operations(SIDE[place.stand_in], device)
    for name, operation in operations.items():
        try:
            results = [operation() for _ in range(TIMES)]
        except RuntimeError as error:
            if REFUSAL not in str(error):
                raise
            differing.append(f"{name} (refused)")
            continue
        if not all(torch.equal(results[0], result) for result in results):
            differing.append(name)
    said = f"of {len(operations)} operations, {TIMES} times each, " + (
        f"these differ: {', '.join(differing)}" if differing else "none differs"
    )
    return Finding(not differing, said)


def _operations(side: int, device: torch.device) -> Mapping[str, Callable[[], torch.Tensor]]:
    """Returns what forward and backward passes of the engines are made of."""
    noise = torch.Generator().manual_seed(0)
    one, other = (torch.randn(side, side, generator=noise).to(device) for _ in range(2))
    places = torch.randint(0, side // 8, (side,), generator=noise).to(device)

    def gradient(of: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor) -> torch.Tensor:
        leaf = at.clone().requires_grad_()
        (found,) = torch.autograd.grad(of(leaf).float().square().sum(), leaf)
        return found

    def attended(states: torch.Tensor) -> torch.Tensor:
        heads = states.view(1, side // 64, 64, side)
        return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)

    return {
        "product in float32": lambda: one @ other,
        "product in bfloat16": lambda: one.bfloat16() @ other.bfloat16(),
        "gradient of a product": lambda: gradient(lambda leaf: leaf @ other, one),
        "gradient of an embedding": lambda: gradient(lambda leaf: functional.embedding(places, leaf), one),
        "sum by index": lambda: torch.zeros_like(one).index_add_(0, places, other),
        "sum of everything": lambda: one.sum(),
        "gradient of a norm": lambda: gradient(lambda leaf: functional.rms_norm(leaf, (side,)), one),
        "gradient of a log-softmax": lambda: gradient(lambda leaf: leaf.log_softmax(-1), one),
        "gradient of attention": lambda: gradient(attended, one),
        "gradient of attention in bfloat16": lambda: gradient(lambda leaf: attended(leaf.bfloat16()), one),
    }


def fixed_members_repeat(place: Place, dtype: str) -> Finding:
    """Generates a batch, others, and the batch again."""
    engine = _engine(place, dtype)
    request = request_of(sizes_at(place).bits, 1)
    first = rows_of(engine.generate(request))
    engine.generate(request_of(sizes_at(place).bits, 2))
    engine.sleep()
    again = rows_of(engine.generate(request))
    differing = sum(one != other for one, other in zip(first, again, strict=True))
    return Finding(not differing, f"{differing} of {len(first)} responses differ")


def invariance_is_as_declared(place: Place, dtype: str) -> Finding:
    """Compares answers in small batches with those in a crowd, and with what the engine declares."""
    engine = _engine(place, dtype)
    declared = bool(engine.capabilities["batch_invariant"])
    smallest = smallest_differing_batch(engine, VOCABULARY)
    said = (f"{'declared' if declared else 'not declared'}; ") + (
        "no batch differs from a crowd" if smallest is None else f"a batch of {smallest} differs from a crowd"
    )
    return Finding(
        holds=smallest is None or not declared,
        said=said,
        figures={"smallest_differing_batch": None if smallest is None else float(smallest)},
    )


def checkpoint_resumes(place: Place, dtype: str, trainer: str) -> Finding:
    """Ends a run, and goes on from its checkpoint in engines that have done other work."""
    work = sizes_at(place).bits
    spec = spec_of(work, TRAINERS[trainer], dtype, exact=True, learning_rate=1e-3)
    same = resumed_run_is_the_same(spec, new_folder(place, f"resumed-{dtype}-{trainer}"), model_in(place.folder, work))
    return Finding(same, "responses and weights are the same" if same else "responses or weights differ")


def _engine(place: Place, dtype: str) -> RolloutEngine:
    """Returns the torch engine with the model's weights."""
    work = sizes_at(place).bits
    model = model_in(place.folder, work)
    engine = build_rollout_engine(spec_of(work, None, dtype, exact=True), str(model), model)
    trainer: Any = started(Alone(), spec_of(work), new_folder(place, f"weights-{dtype}"), model)
    engine.update_weights(dict(trainer.stream_weights()), 0)
    return engine
