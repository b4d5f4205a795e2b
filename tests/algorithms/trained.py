"""Random ragged batches, and what the trainer's own classes make of them on several ranks: loss, gradients, columns.

The models are tables with a value for each response token (`tests.engines.train.tables`): the policy before and during an
update, the reference, two teachers and the critic before and during an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.engines.train.support import MAX_NEW_TOKENS
from tests.engines.train.tables import Gradients, Table, ThreadCollective, on_threads
from yatt_core.engines.train.base.preparation import Preparer
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.roles.critic import Critic, ValueSums
from yatt_core.engines.train.steps.batch_advantages import shaped_batch
from yatt_core.engines.train.steps.learner import PolicyLearner
from yatt_core.engines.train.steps.objective import LossSums
from yatt_core.engines.train.steps.plan import PlanShape, plan_steps
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import BatchTask
from yatt_core.spec.run import RunSpec
from yatt_core.wire.ragged import offsets_of

Array = np.ndarray[Any, Any]
SEED = 3
TOKENS = ("old", "new", "sampler", "reference", "teacher", "other_teacher", "values", "new_values", "entropies")


@dataclass(frozen=True)
class Case:
    """A batch, and a column of its response tokens for each of `TOKENS`, in float32."""

    batch: ExperienceBatch
    columns: Mapping[str, Array]

    def __getattr__(self, name: str) -> Array:
        if name not in TOKENS:
            raise AttributeError(name)
        return self.columns[name]


def make_case(
    noise: np.random.Generator, groups: list[list[int]], kinds: list[str], spread: float, gap: float, padding: bool
) -> Case:
    """Makes a case of groups of responses with these lengths.

    kinds: of each group's rewards, and `masked` for a group none of whose tokens count.
    spread, gap: standard deviations of new and of sampled log-probabilities around the old ones.
    padding: whether the last group only fills up the batch.
    """
    sizes = np.array([len(group) for group in groups])
    lengths = np.array([length for group in groups for length in group], dtype=np.int64)
    ordinals = np.repeat(np.arange(len(groups)), sizes)
    tokens = int(lengths.sum())
    count = int(sizes.sum())
    drawn = {
        "binary": lambda size: noise.choice([0.0, 1.0], size),
        "normal": lambda size: noise.normal(0, 2, size),
        "equal": lambda size: np.full(size, 0.1),
        "masked": lambda size: noise.choice([0.0, 1.0], size),
    }
    first = np.concatenate([drawn[kind](size) for kind, size in zip(kinds, sizes, strict=True)])
    second = noise.choice([0.0, 1.0], count)
    second[np.repeat([kind == "equal" for kind in kinds], sizes)] = 1.0
    hidden = np.isin(ordinals, [place for place, kind in enumerate(kinds) if kind == "masked"])
    hidden |= (ordinals == len(groups) - 1) & padding
    mask = (noise.random(tokens) < 0.85) & ~np.repeat(hidden, lengths)
    old = noise.uniform(-4, -0.1, tokens)
    columns = {
        "old": old,
        "new": -np.abs(old + noise.normal(0, spread, tokens)),
        "sampler": -np.abs(old + noise.normal(0, gap, tokens)),
        **{name: -np.abs(old + noise.normal(0, 0.5, tokens)) for name in ("reference", "teacher", "other_teacher")},
        "values": noise.normal(0, 1, tokens),
        "new_values": noise.normal(0, 1, tokens),
        "entropies": noise.uniform(0, 2, tokens),
    }
    found = {name: column.astype(np.float32) for name, column in columns.items()}
    prompts = noise.integers(1, 5, len(groups))
    batch = ExperienceBatch(
        ordinals=ordinals,
        samples=np.concatenate([np.arange(size) for size in sizes]).astype(np.int32),
        prompt_tokens=np.ones(int(np.repeat(prompts, sizes).sum()), dtype=np.int32),
        prompt_offsets=offsets_of(np.repeat(prompts, sizes)),
        response_tokens=np.ones(tokens, dtype=np.int32),
        response_offsets=offsets_of(lengths),
        log_probs_sampler=found["sampler"],
        loss_mask=mask,
        rewards=0.7 * first + 0.3 * second,
        reward_parts={"first": first, "second": second},
        correct=np.zeros(count, dtype=np.bool_),
        truncated=lengths == MAX_NEW_TOKENS,
        weight_versions=np.zeros(count, dtype=np.int32),
        padding=(len(groups) - 1,) if padding else (),
    )
    return Case(batch, found)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draws 1 to 4 groups of 1 to 4 responses with 0 to 7 tokens; those with 7 are truncated."""
    response = st.integers(0, MAX_NEW_TOKENS)
    groups = draw(st.lists(st.lists(response, min_size=1, max_size=4), min_size=1, max_size=4))
    kind = st.sampled_from(["binary", "binary", "normal", "equal", "masked"])
    kinds = draw(st.lists(kind, min_size=len(groups), max_size=len(groups)))
    spread = draw(st.sampled_from([1e-4, 0.02, 0.3, 30.0]))
    gap = draw(st.sampled_from([0.05, 0.8, 12.0]))
    noise = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return make_case(noise, groups, kinds, spread, gap, len(groups) > 1 and draw(st.booleans()))


def edge_case(spread: float = 30.0) -> Case:
    """Makes a batch with all edges at once.

    Equal rewards, responses of one token and of none, a masked response, a group without a token, a group whose tokens are
    all masked, truncated responses, padding, and, unless `spread` is small, huge ratios.
    """
    groups = [[1, 3, 2], [7, 7, 4, 1], [0, 0], [3, 2], [1], [2, 2]]
    kinds = ["equal", "binary", "normal", "masked", "binary", "binary"]
    case = make_case(np.random.default_rng(7), groups, kinds, spread, min(spread, 12.0), True)
    ends = case.batch.response_offsets
    case.batch.loss_mask[: ends[7]] = True
    case.batch.loss_mask[ends[5] : ends[6]] = False
    return case


def all_masked(case: Case) -> Case:
    """Returns a case none of whose tokens count."""
    return replace(case, batch=replace(case.batch, loss_mask=np.zeros_like(case.batch.loss_mask)))


TASK = BatchTask(WorkKey("r", 0, 1, "learn"), 1, ())


@dataclass(frozen=True)
class Trained:
    """One rank's results: the same on every rank.

    by_log_prob, by_entropy: gradients at each response token.
    values: the critic's sums and gradients; None without a critic.
    """

    sums: LossSums
    by_log_prob: Array
    by_entropy: Array
    values: tuple[ValueSums, Array] | None = None


def trained(spec: RunSpec, case: Case, ranks: int, shape: PlanShape, task: BatchTask = TASK) -> list[Trained]:
    """Returns each rank's results of one step over a batch, from `prepare` on.

    shape: of the plan of micro-batches, for one rank.
    task: of `prepare`, with adaptive coefficients and the moments of earlier rewards.
    """
    shape = replace(shape, ranks=ranks)
    batch = shaped_batch(spec, case.batch)
    (step,) = plan_steps(batch.lengths, batch.group_offsets, shape, SEED)

    def prepared(collective: Collective) -> PreparedColumns:
        policy = Table(case.old)
        critic = None if spec.critic is None else Table(case.values)
        preparer = Preparer(spec, policy, Gradients(policy), collective, _taught(spec, case), critic)
        reference = case.reference if spec.algorithm.kl is not None else None
        return preparer.prepare(batch, shape, reference, task).columns

    columns = merged(on_threads(ranks, prepared), batch)

    def learned(collective: ThreadCollective) -> Trained:
        policy = Table(case.new, case.entropies)
        learner = PolicyLearner(spec, policy, Gradients(policy), collective, task.coefficients)
        sums = learner.gradients(batch, columns, step, SEED)
        values = None
        if spec.critic is not None:
            critic = TableCritic(spec.critic, case.new_values)
            value_sums = critic.gradients(collective, batch, columns, step)
            values = value_sums, _gradient(critic.table.values)
        return Trained(sums, _gradient(policy.values), _gradient(policy.entropies), values)

    return on_threads(ranks, learned)


def merged(parts: list[PreparedColumns], batch: ExperienceBatch) -> PreparedColumns:
    """Returns the columns of all samples from those of each rank's, as files of the ranks are read."""
    rows = {(o, s): i for i, (o, s) in enumerate(zip(batch.ordinals.tolist(), batch.samples.tolist(), strict=True))}
    advantages = np.zeros(len(batch))
    tokens = dict[str, Array]()
    for part in parts:
        bounds = part.response_offsets
        for place, key in enumerate(zip(part.ordinals.tolist(), part.samples.tolist(), strict=True)):
            advantages[rows[key]] = part.advantages[place]
            start, stop = batch.response_offsets[rows[key] : rows[key] + 2]
            for name in ("token_advantages", "values", "returns", *_SCORED):
                if (column := getattr(part, name)) is not None:
                    whole = tokens.setdefault(name, np.zeros(len(batch.response_tokens), dtype=np.float32))
                    whole[start:stop] = column[bounds[place] : bounds[place + 1]]
    return PreparedColumns(batch.ordinals, batch.samples, advantages, batch.response_offsets, **tokens)


_SCORED = ("log_probs_old", "log_probs_ref", "log_probs_teacher")


class TableCritic(Critic):
    """A critic that is a table."""

    def __init__(self, spec: Any, values: Array) -> None:
        super().__init__(spec, "head")
        self.table = Table(values)
        self.optimizer = Gradients(self.table)
        self.passes = self.table

    def _not_here(self, *_: Any) -> Any:
        raise AssertionError("a table has no files and no memory")

    take = tensors = parts = rectangles = load = memory = _not_here
    steps = property(_not_here)


class _Teacher:
    def __init__(self, column: Array) -> None:
        self.passes = Table(column)

    def require_known(self, highest: int) -> None:
        """Knows every token."""


def _taught(spec: RunSpec, case: Case) -> Any:
    if spec.algorithm.distillation is None:
        return None
    teachers = [(_Teacher(case.teacher), 1.0), (_Teacher(case.other_teacher), 3.0)]
    return type("Teachers", (), {"of": lambda self, iteration: teachers})()


def _gradient(tensor: Any) -> Array:
    assert tensor.grad is not None
    return tensor.grad.numpy()
