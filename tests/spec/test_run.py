"""The spec itself: defaults, immutability, digest, exactness, contradictions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from tests.spec.trees import ROOT, VIRTUAL, mistakes, spec, tells, tree
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec, load_spec, parse_spec


def leaves(value, place=()):
    """Yields every value in a JSON tree with its place."""
    if isinstance(value, dict) and value:
        return [leaf for key, item in value.items() for leaf in leaves(item, (*place, key))]
    if isinstance(value, list) and value:
        return [leaf for index, item in enumerate(value) for leaf in leaves(item, (*place, index))]
    return [(place, value)]


def test_defaults_of_a_real_run():
    made = spec()
    assert made.exact == "auto" and made.is_exact
    assert not made.virtual
    assert (made.rollout.engine.kind, made.rollout.engine.dtype, made.rollout.engine.instances) == (
        "torch",
        "float32",
        2,
    )
    assert (made.trainer.engine.kind, made.trainer.engine.dtype, made.trainer.engine.ranks) == ("torch", "float32", 2)
    assert (made.rollout.temperature, made.rollout.top_p) == (1.0, 1.0)
    assert made.algorithm.advantage.kind == "group_std"
    assert made.algorithm.kl is None
    assert made.sft is None
    assert made.model.kind == "from_config"
    assert made.data.logical_shards == 16
    assert made.controllers.count == 2
    assert made.optimizer_steps_per_iteration == 1
    assert made.exact_obstacles() == []


def test_defaults_fit_together():
    """A spec with only the required keys can be run: a prompt and a response fit into the default model."""
    made = spec()
    assert made.data.max_prompt_tokens + made.rollout.max_new_tokens <= made.model.max_positions


@pytest.mark.parametrize("path", [*ROOT.glob("configs/*.yaml"), *ROOT.glob("tests/specs/*.yaml")], ids=lambda p: p.stem)
def test_every_spec_in_the_repository_is_valid_and_survives_the_ledger(path):
    made = load_spec(path)
    again = parse_spec(made.model_dump(mode="json"), "the ledger")
    assert again == made
    assert again.digest == made.digest
    assert RunSpec.model_validate_json(made.model_dump_json()) == made


def test_derived_values():
    made = spec(algorithm={"epochs": 2, "mini_batches": 3}, data__prompts_per_iteration=5)
    assert made.optimizer_steps_per_iteration == 6
    assert made.shards == 5
    assert spec(data__logical_shards=4).shards == 4
    assert spec(**VIRTUAL).virtual
    parts = [{"name": "length", "function": "f"}, {"name": "right", "function": "g"}]
    assert spec(rewards__parts=parts).accuracy_part == "length"
    assert spec(rewards__parts=parts, rewards__accuracy_part="right").accuracy_part == "right"


def models_in(value):
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from models_in(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from models_in(item)


def test_every_part_is_frozen():
    made = load_spec(ROOT / "configs" / "quickstart.yaml")
    parts = list(models_in(made))
    assert len(parts) > 15
    for part in parts:
        name = next(iter(type(part).model_fields))
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, name, getattr(part, name))


def test_the_digest_is_pinned():
    """If this digest changes, every run in a ledger seems to have another spec, so a change must be deliberate."""
    assert spec(name="pinned").digest == "a757e361b8c1fe52ed8f371160852b2e88179b974a1bccdaaa84d43524921f0d"


@pytest.mark.parametrize("kind", ["language", "yatt_core.workloads.diffusion.drawing:ShapeDrawing"])
def test_newer_keys_of_a_workload_at_their_defaults_change_no_digest(kind):
    """Specs in ledgers lack them, or have them from versions that wrote them."""
    lacking = (
        {**tree(), "workload": {"kind": kind}} if kind == "language" else {"name": "own", "workload": {"kind": kind}}
    )
    found = parse_spec(lacking, "a ledger")
    document = found.model_dump(mode="json")
    assert not {"models", "sampled_by"} & document["workload"].keys()
    document["workload"] |= {"models": {}, "sampled_by": "trainer"}
    assert (
        parse_spec(document, "a ledger").digest == found.digest == parse_spec(found.model_dump(mode="json"), "b").digest
    )


def test_the_digest_does_not_depend_on_the_order_of_keys_or_on_how_values_are_written():
    forward = tree(rollout={"temperature": 1, "max_new_tokens": 6}, seed=3)
    backward = dict(reversed(tree(rollout={"max_new_tokens": "6", "temperature": 1.0}, seed=3).items()))
    assert list(forward) != list(backward)
    assert parse_spec(forward, "a").digest == parse_spec(backward, "b").digest


def test_the_digest_is_the_same_in_another_process():
    path = ROOT / "configs" / "quickstart.yaml"
    program = (
        f"from pathlib import Path; from yatt_core.spec import load_spec; print(load_spec(Path({str(path)!r})).digest)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONHASHSEED": "7"},
    )
    assert shown.stdout.strip() == load_spec(path).digest


def test_any_other_value_gives_another_digest():
    """Changing any leaf of a full spec to another allowed value changes the digest."""
    whole = load_spec(ROOT / "configs" / "quickstart.yaml").model_dump(mode="json")
    original = parse_spec(whole, "test").digest
    unchanged = []
    changed = 0
    for place, value in leaves(whole):
        for other in _others(value):
            copied = parse_spec(whole, "test").model_dump(mode="json")
            node = copied
            for key in place[:-1]:
                node = node[key]
            node[place[-1]] = other
            try:
                digest = RunSpec.model_validate(copied).digest
            except ValidationError:
                continue
            changed += 1
            if digest == original:
                unchanged.append(place)
            break
    assert unchanged == []
    assert changed > 50


def _others(value):
    """Returns other values of the same type, at least one of which is usually allowed."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        choices = ["linear", "cosine", "sequence_mean", "group_mean", "llama", "other"]
    elif isinstance(value, int | float):
        choices = [value * 2, value / 2, value + 1]
    else:
        choices = ["other"]
    return [choice for choice in choices if choice != value]


def test_options_are_free_and_part_of_the_digest():
    nested = {"a": [1, 2.5, "x", None, {"b": True}]}
    made = spec(data__sources__0__options=nested)
    assert made.data.sources[0].options == nested
    assert made.digest != spec().digest


def test_continuous_batching_in_bfloat16_prevents_exactness_on_processors():
    """Planned batches do not: they are decoded again as they were, and trainers repeat their bits."""
    bf16 = {"kind": "torch", "dtype": "bfloat16"}
    assert spec(rollout__engine=bf16, trainer__engine=bf16, exact=True).is_exact
    assert spec(rollout__engine=bf16, trainer__engine={"kind": "fsdp2", "ranks": 2, "dtype": "bfloat16"}).is_exact
    continuous = {"kind": "vllm", "dtype": "bfloat16", "instances": 1}
    served = spec(rollout__engine=continuous, trainer__engine=bf16, exact=True)
    (obstacle,) = served.obstacles_on_processors()
    assert tells(obstacle, "rollout.engine.dtype is bfloat16", "float32", "kind: torch")
    assert served.is_exact and not served.exact_obstacles(), "vLLM has a mode for it on GPUs"
    assert not spec(rollout__engine=bf16, trainer__engine=bf16).obstacles_on_processors()
    assert not spec(rollout__engine=continuous).is_exact, "by default, kernels stay as they are"


def test_a_narrow_cache_prevents_exactness_on_processors():
    narrow = {"kind": "vllm", "dtype": "float32", "instances": 1, "kv_cache_dtype": "fp8"}
    (obstacle,) = spec(rollout__engine=narrow, exact=True).obstacles_on_processors()
    assert tells(obstacle, "rollout.engine.kv_cache_dtype is fp8", "auto")
    assert not spec(rollout__engine=narrow | {"kv_cache_dtype": "auto"}).obstacles_on_processors()


def test_leaving_out_what_is_late_prevents_exactness_and_overdispatch_leaves_nothing_out():
    overdrawn = spec(dynamic_sampling={"kind": "valid_group", "overdispatch": {"factor": 1.5}}, exact=True)
    assert overdrawn.samples_dynamically and overdrawn.tail is None, "runs of earlier versions wait for what they draw"
    for section in ("dynamic_sampling", "evaluation"):
        (line,) = mistakes(**{f"{section}__deadline": {"seconds": 60}}, exact=True)
        assert tells(line, "exact: ", "false", f"{section}.deadline")
    assert not spec().samples_dynamically


CALCULATOR = [{"name": "calculator", "function": "calculator"}]
TWO_PARTS = [{"name": "a", "function": "f"}, {"name": "a", "function": "g"}]


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"rewards__parts": TWO_PARTS}, ("rewards.parts: ", "'a'")),
        ({"rewards__accuracy_part": "none"}, ("rewards.accuracy_part: ", "'none'", "'exact'")),
        (
            {"rollout__engine": {"kind": "virtual"}},
            ("rollout.engine and trainer.engine: ", "virtual and torch"),
        ),
        (
            {"algorithm": {"mini_batches": 3}, "data__prompts_per_iteration": 2},
            ("algorithm.mini_batches: ", "3", "data.prompts_per_iteration", "2"),
        ),
        (
            {"rollout__samples_per_prompt": 1},
            ("rollout.samples_per_prompt: ", "2"),
        ),
        (
            {"rollout__samples_per_prompt": 8, "rollout__batch_samples": 7},
            ("rollout: ", "batch_samples", "7", "samples_per_prompt", "8"),
        ),
        (
            {"dynamic_sampling": {"kind": "best_and_worst", "keep": 5}, "rollout__samples_per_prompt": 9},
            ("dynamic_sampling.keep: ", "5", "rollout.samples_per_prompt", "9", "4"),
        ),
        (
            {"dynamic_sampling": {"deadline": {"seconds": 60}}, "exact": False, "data__logical_shards": 1},
            ("dynamic_sampling.deadline: ", "data.logical_shards"),
        ),
        (
            {"rollout__max_new_tokens": 64, "model": {"kind": "from_config", "max_positions": 64}},
            ("rollout.max_new_tokens: ", "64", "model.max_positions"),
        ),
        (
            {"model": {"kind": "from_config", "hidden_size": 100, "heads": 3, "key_value_heads": 3}},
            ("model: ", "hidden_size", "100", "3"),
        ),
        (
            {"model": {"kind": "from_config", "hidden_size": 96, "heads": 6}},
            ("model: ", "6", "key_value_heads", "4"),
        ),
        (
            {
                "rollout__max_new_tokens": 32,
                "rollout__tools": {"functions": CALCULATOR, "max_turns": 3, "max_result_tokens": 16},
                "model": {"kind": "from_config", "max_positions": 64},
            },
            ("rollout.max_new_tokens: ", "32", "model.max_positions", "64"),
        ),
        (
            {"rollout__tools": {"functions": CALCULATOR * 2}},
            ("rollout.tools.functions: ", "'calculator'"),
        ),
        (
            {"rollout__tools": {"functions": [{**CALCULATOR[0], "deterministic": False}]}, "exact": True},
            ("exact: ", "false", "'calculator'"),
        ),
        (
            {"rewards__parts__0__name": "mean"},
            ("rewards.parts.0.name: ", "'mean'"),
        ),
        (
            {"rewards__parts__0__name": "std"},
            ("rewards.parts.0.name: ", "'std'"),
        ),
    ],
)
def test_contradictions_are_refused(changes, facts):
    (line,) = mistakes(**changes)
    assert tells(line, *facts)


def test_contradictions_are_reported_all_at_once():
    lines = mistakes(rewards__accuracy_part="none", rollout__engine={"kind": "virtual"}, rollout__samples_per_prompt=1)
    assert [line.split(":")[0] for line in lines] == [
        "rewards.accuracy_part",
        "rollout.engine and trainer.engine",
        "rollout.samples_per_prompt",
    ]


def test_a_virtual_run_is_not_checked_against_a_model():
    made = spec(**VIRTUAL, rollout__max_new_tokens=64, model={"kind": "from_config", "max_positions": 64})
    assert made.rollout.max_new_tokens == 64


def test_the_reserved_names_are_the_metrics_of_the_total():
    from flows.phases.metrics import experience_metrics
    from yatt_core.spec.rewards.parts import TAKEN_NAMES

    sums = dict.fromkeys(
        ("samples", "prompts", "reward", "reward_squared", "correct", "truncated", "response_tokens", "prompt_tokens"),
        1.0,
    )
    metrics = experience_metrics({**sums, "reward_errors": 0.0, "zero_spread_groups": 0.0})
    taken = {metric.key.removeprefix("reward/") for metric in metrics if metric.key.startswith("reward/")}
    assert taken == TAKEN_NAMES


def test_paths_in_a_spec_from_the_ledger_are_unchanged(tmp_path: Path):
    made = spec(model={"kind": "folder", "path": str(tmp_path)})
    assert made.model.path == str(tmp_path)


def test_a_warm_up_needs_probe_tasks(tmp_path: Path) -> None:
    quickstart = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
    with pytest.raises(ConfigurationError, match=r"data\.probe"):
        load_spec(quickstart, ["data.probe=0"])
    assert load_spec(quickstart, ["data.probe=0", "sft=null"]).data.probe == 0


def test_a_teacher_alone_needs_one_response_to_a_prompt():
    """Without weighted rewards there is nothing to compare the responses of a prompt by."""
    teacher = {"distillation": {"teachers": [{"model": {"kind": "folder", "path": "m"}}]}}
    unweighted = [{"name": "exact", "function": "exact_match", "weight": 0.0}]
    made = spec(algorithm=teacher, rewards__parts=unweighted, rollout__samples_per_prompt=1)
    assert made.rollout.samples_per_prompt == 1
    (line,) = mistakes(algorithm=teacher, rollout__samples_per_prompt=1)
    assert tells(line, "rollout.samples_per_prompt: ", "2")


ROWS = {
    "objective": {"kind": "dpo"},
    "rewards": {"parts": []},
    "data": {"sources": [{"kind": "jsonl", "path": "rows.jsonl"}]},
}


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        ({"algorithm": {"epochs": 2}}, "algorithm"),
        ({"sft": {}}, "sft"),
        ({"rewards": {"parts": [{"name": "exact", "function": "exact_match"}]}}, "rewards.parts"),
        ({"dynamic_sampling": {"kind": "valid_group"}}, "dynamic_sampling"),
        ({"data": {"sources": [{"kind": "reasoning_gym", "task": "spell_backward"}]}}, "data.sources"),
        ({"objective": {"kind": "dpo", "pairs": "sampled"}}, "rewards"),
        ({"objective": {"kind": "dpo", "mini_batches": 100}}, "objective.mini_batches"),
        ({"objective": {"kind": "reward_model"}, "trainer": {"lora": {}}}, "trainer.lora"),
        (VIRTUAL, "objective"),
    ],
)
def test_what_contradicts_an_objective(parts, key):
    assert any(tells(line, f"{key}: ") for line in mistakes(**(ROWS | parts)))


def test_a_run_that_learns_from_rows_needs_no_devices_for_rollout():
    made = spec(**ROWS, rollout__engine__instances=8, trainer__engine={"kind": "torch", "ranks": 3})
    assert made.devices == 3 and made.keeps_reference and made.trainer_temperature == 1.0
