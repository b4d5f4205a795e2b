"""A small spec for each feature, and for several together, whose paths lead into one folder.

What a feature is (`own`) takes precedence over what it merely needs (`needs`), so that two features meet even where each needs
something else. Two features that set the same key to different values are alternatives.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from yatt_core.spec import features
from yatt_core.spec.combinations import EXCLUSIONS, Exclusion
from yatt_core.spec.features import Feature

Tree = Mapping[str, Any]
VISION = {"image_size": 16, "patch_size": 8, "hidden_size": 8, "layers": 1, "heads": 2, "intermediate_size": 16}
CALCULATOR = {"name": "calculator", "function": "calculator"}
QUESTION = "Is {response} right? "
STEPS = {"name": "wrong", "function": "tests.spec.feature_examples:no_step_is_wrong", "weight": 0}


@dataclass(frozen=True, slots=True)
class Example:
    """How a spec has a feature.

    implies: features that the spec has with it in any case, apart from the kinds of engines.
    from_rows: whether the spec has no rewards unless another feature brings them.
    """

    own: Tree
    needs: Tree = field(default_factory=dict)
    implies: tuple[Feature, ...] = ()
    from_rows: bool = False


def no_step_is_wrong(prompt: object, steps: list[str]) -> list[bool]:
    """A rule for critiques."""
    return [False for _ in steps]


def rows(path: str, **fields: Any) -> dict[str, Any]:
    return {"data": {"sources": [{"kind": "jsonl", "path": path, **fields}]}}


def judge(**part: Any) -> dict[str, Any]:
    return {"rewards": {"parts": [{"template": QUESTION, "max_new_tokens": 4, **part}]}}


def rollout(**engine: Any) -> dict[str, Any]:
    return {"rollout": {"engine": engine}}


def trainer(**engine: Any) -> dict[str, Any]:
    return {"trainer": {"engine": engine}}


def algorithm(**settings: Any) -> dict[str, Any]:
    return {"algorithm": settings}


VLLM = {"kind": "vllm", "instances": 1, "dtype": "float32"}
FOLDER = {"kind": "folder", "path": "judge"}
PREFERENCES = rows("preferences.jsonl")
FROM_ROWS = (features.OBJECTIVE, features.ROWS_OBJECTIVE)
EXAMPLES: Mapping[Feature, Example] = {
    features.VIRTUAL_ROLLOUT: Example(rollout(kind="virtual"), trainer(kind="virtual")),
    features.CONTINUOUS_ROLLOUT: Example(rollout(kind="virtual", max_num_seqs=8), trainer(kind="virtual")),
    features.TORCH_ROLLOUT: Example(rollout(kind="torch")),
    features.CONTINUOUS_TORCH_ROLLOUT: Example(rollout(kind="torch", continuous=True, max_num_seqs=8)),
    features.VLLM_ROLLOUT: Example(rollout(**VLLM)),
    features.SPANNING_ROLLOUT: Example(rollout(**VLLM, pipeline_parallel_size=2)),
    features.VIRTUAL_TRAINER: Example(trainer(kind="virtual"), rollout(kind="virtual")),
    features.TORCH_TRAINER: Example(trainer(kind="torch")),
    features.PACKED: Example(trainer(kind="torch", packed=True)),
    features.FSDP2_TRAINER: Example(trainer(kind="fsdp2", dtype="float32", ranks=1)),
    features.MEGATRON_TRAINER: Example(trainer(kind="megatron", dtype="float32", data_parallel_size=1)),
    features.LORA: Example({"trainer": {"lora": {"rank": 2}}}),
    features.ADAPTER_SYNC: Example({"trainer": {"lora": {"sync": "adapter"}}}, implies=(features.LORA,)),
    features.DELTA_SYNC: Example({"trainer": {"sync": "delta"}}),
    features.OBJECT_STORE: Example({"storage": {"url": "s3://bucket/runs"}}),
    features.IMAGES: Example(
        rows("pictures.jsonl", image_field="image"), {"model": {"vision": VISION}}, (features.SEEING_MODEL,)
    ),
    features.SEEING_MODEL: Example({"model": {"vision": VISION}}),
    features.RENDERED: Example(rows("rendered.jsonl", rendered=True)),
    features.REASONING_GYM: Example(
        {"data": {"sources": [{"kind": "reasoning_gym", "task": "spell_backward", "size": 100}]}}
    ),
    features.CURRICULUM: Example({"data": {"curriculum": {}}}),
    features.TOOLS: Example(
        {"rollout": {"tools": {"functions": [CALCULATOR], "max_turns": 2, "max_result_tokens": 40}}}
    ),
    features.REPETITION_PENALTY: Example({"rollout": {"repetition_penalty": 1.1}}),
    features.DYNAMIC_SAMPLING: Example({"dynamic_sampling": {"kind": "all", "refill": {"max_waves": 2}}}),
    features.OVERDISPATCH: Example(
        {"dynamic_sampling": {"overdispatch": {"factor": 1.5}}}, implies=(features.DYNAMIC_SAMPLING,)
    ),
    features.CHOSEN_GROUPS: Example(
        {"dynamic_sampling": {"deadline": {"seconds": 60}}}, implies=(features.DYNAMIC_SAMPLING,)
    ),
    features.SLICES: Example({"rollout": {"slice_tokens": 4}}),
    features.TAIL: Example({"rollout": {"tail": {"step_tokens": 4}}}),
    features.LAG: Example({"asynchrony": {"lag": 1}}),
    features.STREAMED: Example({"asynchrony": {"streamed": True}}),
    features.SFT: Example({"sft": {"demonstrations": 4, "batch_size": 4, "max_steps": 1}}),
    features.ANSWERED_EVALUATION: Example({"evaluation": {"sampling": {"samples": 2}}}),
    features.ALGORITHM: Example(algorithm(epsilon=1e-3)),
    features.CRITIC: Example(
        algorithm(critic={}, advantage={"kind": "gae"}), implies=(features.ALGORITHM, features.BATCH_ADVANTAGE)
    ),
    features.SEVERAL_STEPS: Example(algorithm(mini_batches=2), implies=(features.ALGORITHM,)),
    features.BATCH_ADVANTAGE: Example(algorithm(advantage={"kind": "batch_std"}), implies=(features.ALGORITHM,)),
    features.PERMUTED_ADVANTAGES: Example(algorithm(permute_advantages=True), implies=(features.ALGORITHM,)),
    features.FREEZING_ENTROPY: Example(algorithm(entropy={"kind": "clip_cov"}), implies=(features.ALGORITHM,)),
    features.ENTROPY_BY_SEQUENCE: Example(
        algorithm(entropy={"kind": "bonus", "coefficient": 0.01}, aggregation="sequence_mean"),
        implies=(features.ALGORITHM,),
    ),
    features.GDPO: Example(
        algorithm(advantage={"kind": "gdpo"}), implies=(features.ALGORITHM, features.BATCH_ADVANTAGE)
    ),
    features.WHOLE_RESPONSE_LOSS: Example(algorithm(loss={"kind": "gspo"}), implies=(features.ALGORITHM,)),
    features.LENGTH_PENALTY: Example(
        algorithm(length_penalty={"kind": "overlong", "buffer": 2}), implies=(features.ALGORITHM,)
    ),
    features.REWARD_SCALING: Example(algorithm(reward_scaling="running"), implies=(features.ALGORITHM,)),
    features.REPLAYED_SUPPORT: Example(
        algorithm(sampler_support="replay"), {"rollout": {"top_k": 8}}, (features.ALGORITHM,)
    ),
    features.TEACHERS: Example(
        algorithm(distillation={"teachers": [{"model": {"kind": "folder", "path": "policy"}}]}),
        {"model": {"kind": "folder", "path": "policy"}},
        (features.ALGORITHM,),
    ),
    features.SELF_DISTILLATION: Example(algorithm(distillation={"privileged": {}}), implies=(features.ALGORITHM,)),
    features.REWARDS: Example({"rewards": {"parts": [{"name": "again", "function": "exact_match", "weight": 0.1}]}}),
    features.CRITIQUE: Example({"rewards": {"critique": {"part": "wrong"}, "parts": [STEPS]}}),
    features.TORCH_JUDGE: Example(judge(name="asked", kind="generative", model=FOLDER)),
    features.VLLM_JUDGE: Example(
        judge(name="served", kind="generative", model=FOLDER, engine={"kind": "vllm", "dtype": "float32"})
    ),
    features.VIRTUAL_JUDGE: Example(judge(name="pretended", kind="generative", engine={"kind": "virtual"})),
    features.ENDPOINT_JUDGE: Example(
        judge(name="rented", kind="endpoint", url="http://127.0.0.1:9/v1", model="m", seeded=True)
    ),
    features.REWARD_MODEL: Example(
        {
            "rewards": {
                "parts": [{"name": "scored", "kind": "reward_model", "model": {"kind": "folder", "path": "classifier"}}]
            }
        }
    ),
    features.OBJECTIVE: Example({"objective": {"kind": "dpo", "pairs": "sampled"}}),
    features.ROWS_OBJECTIVE: Example({"objective": {"kind": "sft"}}, implies=(features.OBJECTIVE,), from_rows=True),
    features.PREFERENCE_ROWS: Example(
        {"objective": {"kind": "simpo"}} | PREFERENCES, implies=FROM_ROWS, from_rows=True
    ),
    features.REWARD_MODEL_OBJECTIVE: Example(
        {"objective": {"kind": "reward_model"}} | PREFERENCES,
        implies=(*FROM_ROWS, features.PREFERENCE_ROWS),
        from_rows=True,
    ),
    features.OWN_WORKLOAD: Example({"workload": {"kind": "tests.workloads.counting:Counting"}}, from_rows=True),
    features.DATA: Example({}),
    features.MODEL: Example({"model": {"hidden_size": 16}}),
}
ENGINES = {
    ("rollout", "virtual"): features.VIRTUAL_ROLLOUT,
    ("rollout", "torch"): features.TORCH_ROLLOUT,
    ("rollout", "vllm"): features.VLLM_ROLLOUT,
    ("trainer", "virtual"): features.VIRTUAL_TRAINER,
    ("trainer", "torch"): features.TORCH_TRAINER,
    ("trainer", "fsdp2"): features.FSDP2_TRAINER,
    ("trainer", "megatron"): features.MEGATRON_TRAINER,
}
BASE: Tree = {
    "name": "combined",
    "iterations": 2,
    "model": {
        "kind": "from_config",
        "architecture": "qwen3",
        "hidden_size": 16,
        "layers": 2,
        "heads": 2,
        "key_value_heads": 2,
        "intermediate_size": 24,
        "max_positions": 256,
    },
    "data": {"prompts_per_iteration": 4, "logical_shards": 2, "held_out": 2, "probe": 2, "max_prompt_tokens": 100},
    "rollout": {"engine": {"instances": 1}, "samples_per_prompt": 4, "max_new_tokens": 16},
    "trainer": {"engine": {"ranks": 1}},
    "controllers": {"count": 1},
    "tracking": {"reports": False},
}
DEFAULT_MODEL = {"kind": "from_config"}
EXACT = {"name": "exact", "function": "exact_match"}
OF_ONE_SECTION = (
    {features.TEACHERS, features.SELF_DISTILLATION},
    {features.GDPO, features.REWARD_SCALING},
    {features.LAG, features.STREAMED},
    {features.CRITIC, features.PERMUTED_ADVANTAGES},
)
"""Pairs that their common section refuses."""
ADDED = {"sources", "parts", "functions", "teachers"}
"""Lists of which each feature adds its own items."""


class AlternativesError(Exception):
    """Two features that set the same key to different values."""


def tree_of(wanted: Collection[Feature]) -> dict[str, Any]:
    """Returns a spec with some features. Raises `AlternativesError` for features of which a spec has one only."""
    examples = [EXAMPLES[feature] for feature in wanted]
    own: dict[str, Any] = {}
    for each in examples:
        _add(own, each.own, "", strict=True)
    made = copy.deepcopy(dict(BASE))
    builds_itself = features.OWN_WORKLOAD in wanted
    if builds_itself:
        made["model"] = dict(DEFAULT_MODEL)
    for each in examples:
        _add(made, each.needs, "", strict=False)
    _add(made, own, "", strict=False)
    _without_other_kinds(made)
    if "sources" not in made["data"] and (features.DATA in wanted or not builds_itself):
        made["data"]["sources"] = [rows("rows.jsonl")["data"]["sources"][0]]
    if not any(each.from_rows for each in examples):
        made.setdefault("rewards", {}).setdefault("parts", []).insert(0, EXACT)
    return made


def present_in(wanted: Collection[Feature], tree: Tree) -> set[Feature]:
    """Returns all features of the spec that `tree_of` made."""
    implied = {other for feature in wanted for other in EXAMPLES[feature].implies}
    kinds = {ENGINES[section, tree[section]["engine"].get("kind", "torch")] for section in ("rollout", "trainer")}
    rewarded = {features.REWARDS} if tree.get("rewards", {}).get("parts") else set()
    seeing = {features.SEEING_MODEL} if "vision" in tree["model"] else set()
    given = {features.DATA} if "sources" in tree["data"] else set()
    given |= {features.MODEL} if tree["model"] != DEFAULT_MODEL else set()
    return {*wanted, *implied, *kinds, *rewarded, *seeing, *given}


def _add(tree: dict[str, Any], more: Tree, key: str, strict: bool) -> None:
    """Adds values to a tree. strict: whether another value of the same key is an alternative, or gives way."""
    for name, value in more.items():
        known = tree.get(name)
        if isinstance(value, Mapping):
            _add(tree.setdefault(name, {}), value, f"{key}{name}.", strict)
        elif name in ADDED:
            tree[name] = [*(known or ()), *(each for each in value if each not in (known or ()))]
        elif strict and known not in (None, value):
            raise AlternativesError(f"{key}{name}: {known} or {value}")
        else:
            tree[name] = value


def _without_other_kinds(tree: dict[str, Any]) -> None:
    """Leaves out what engines and models of another kind than the base's do not have."""
    kind = tree["trainer"]["engine"].get("kind")
    if kind == "megatron":
        del tree["trainer"]["engine"]["ranks"]
    if tree["model"]["kind"] == "folder":
        tree["model"] = {"kind": "folder", "path": tree["model"]["path"]}


def all_pairs() -> Iterator[tuple[Feature, Feature]]:
    """Yields all pairs of features."""
    listed = list(features.FEATURES)
    yield from ((one, other) for number, one in enumerate(listed) for other in listed[number + 1 :])


def excluded_in(present: Collection[Feature]) -> list[Exclusion]:
    return [each for each in EXCLUSIONS if {each.first, each.second} <= set(present)]


def go_together(wanted: Collection[Feature]) -> bool:
    """Returns whether the table and the sections accept features together."""
    if any(pair <= set(wanted) for pair in OF_ONE_SECTION):
        return False
    try:
        tree = tree_of(wanted)
    except AlternativesError:
        return False
    return not excluded_in(present_in(wanted, tree))


def covering_sets(wanted: Collection[Feature]) -> Iterator[tuple[Feature, ...]]:
    """Yields sets of features that go together, few by a greedy search, so that each pair that does is in one of them."""
    pairs = [frozenset(pair) for pair in all_pairs() if set(pair) <= set(wanted) and go_together(pair)]
    good = set(pairs)
    left = dict.fromkeys(pairs)
    while left:
        chosen = sorted(next(iter(left)), key=features.FEATURES.index)
        fitting = [*wanted]
        while fitting:
            gains = {each: sum(frozenset({each, other}) in left for other in chosen) for each in fitting}
            best = max(fitting, key=gains.__getitem__)
            fitting.remove(best)
            if (
                gains[best]
                and all(frozenset({best, other}) in good for other in chosen)
                and go_together([*chosen, best])
            ):
                chosen.append(best)
        yield tuple(chosen)
        for pair in [pair for pair in left if pair <= set(chosen)]:
            del left[pair]
