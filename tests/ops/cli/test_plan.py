"""`yatt plan`: tables and JSON, described devices, mistakes with their keys, calibrated times, refusals of `train`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.run.home import Home
from tests.ops.conftest import Yatt
from tests.ops.seeding import SHARDS, seed_run, toy_spec
from tests.planning.examples import SIZED_BY_THE_PLAN
from yatt_core.experience.telemetry import write_telemetry
from yatt_core.spec.reading.documents import yaml_text

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
SEVEN = str(CONFIGS / "plan-7b-grpo.yaml")
SEVENTY = str(CONFIGS / "plan-72b-grpo.yaml")
VLLM_NARROW = "rollout.engine={kind: vllm, instances: 1, dtype: bfloat16}"
SMALL = ("--set", "data.prompts_per_iteration=16", "--response-tokens", "300:0.5", "--prompt-tokens", "100:0.2")


def test_a_plan_for_people(yatt: Yatt, home: Home) -> None:
    answer = yatt("plan", SEVEN, "--cluster", "8xH200", *SMALL)
    assert answer.code == 0
    for part in (
        "plan-7b-grpo on 8xH200 (8 devices): 7.62 B parameters",
        "it fits",
        "8 engines, 1 device each",
        "recommended: colocate, all 8 instances serve every role in turn",
        "KV cache",
        "host memory",
        "Predicted iteration",
        "checkpoints: every",
        "responses of 300:0.5 (--response-tokens)",
    ):
        assert part in answer.out
    assert not home.folder.exists()


def test_a_plan_says_what_exactness_costs_its_engines(yatt: Yatt) -> None:
    assert "exact: the run is not exact" in yatt("plan", SEVEN, "--cluster", "8xH200", *SMALL).out
    torch = yatt("plan", str(CONFIGS / "quickstart.yaml"), "--cluster", "8xH200")
    assert "exact: throughput of torch in float32 not measured on GPUs" in torch.out


def test_a_plan_says_what_nodes_must_share(yatt: Yatt) -> None:
    plan = ("plan", SEVEN, "--cluster", "8xH200,2 nodes", *SMALL)
    store = ("--set", "storage.url=s3://bucket/runs")
    assert "must share YATT_HOME" in yatt(*plan).out
    files = yatt(*plan, *store, "-o", "json").document["files"]
    assert (files["storage_url"], files["shared_home_required"]) == ("s3://bucket/runs", False)
    assert files["lost_with_a_node"]


def test_a_plan_for_programs(yatt: Yatt) -> None:
    answer = yatt("plan", SEVENTY, "--cluster", "8xH200,16 nodes", *SMALL, "-o", "json")
    assert answer.code == 0
    document = answer.document
    assert document["fits"] is True
    assert document["cluster"]["devices"] == 128
    assert document["files"] == {"storage_url": None, "shared_home_required": True, "lost_with_a_node": []}
    assert document["placement"]["rollout"]["instances"] == 16
    stages = {row["stage"]: row for row in document["memory"]}
    assert list(stages) == ["collect", "prepare", "learn", "sync"]
    trainer = stages["learn"]["roles"]["trainer"]
    assert trainer["weights"] > 1e10
    assert stages["learn"]["tensors"] == sum(
        count for role in stages["learn"]["roles"].values() for kind, count in role.items() if kind != "runtime"
    )
    assert document["times"]["mode"] == "colocate"
    assert {"step_s", "tokens_per_second", "idle_fraction", "checkpoint_every"} <= set(document["times"])


def test_an_impossible_plan(yatt: Yatt) -> None:
    sized = [word for override in (*SIZED_BY_THE_PLAN, "algorithm.kl=null") for word in ("--set", override)]
    answer = yatt("plan", SEVENTY, "--cluster", "8xH200", *sized)
    assert answer.code == 2
    assert "it does not fit" in answer.out
    assert "too much" in answer.out
    assert "learn: " in answer.out
    assert "more than a device's memory has" in answer.out
    assert "it would fit with --set trainer.engine.optimizer_cpu_offload=true" in answer.out
    assert "it would fit unchanged on 2 nodes of 8xH200" in answer.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--cluster", "8xH2000"), "'H2000'; did you mean H200"),
        (
            ("--set", "trainer.engine.tensor_model_parallel_size=3"),
            "plan-7b-grpo.yaml: trainer.engine.tensor_model_parallel_size: 3",
        ),
        (("--set", "trainer.engine.tensor_parallel=2"), "trainer.engine.tensor_parallel: unknown key"),
        (("--response-tokens", "long"), "--response-tokens long: "),
        (("--cards", "none.yaml"), "none.yaml"),
    ],
)  # fmt: skip
def test_mistakes(yatt: Yatt, words: tuple[str, ...], says: str) -> None:
    devices = () if "--cluster" in words else ("--cluster", "8xH200")
    answer = yatt("plan", SEVEN, *devices, *words)
    assert answer.code == 2
    assert answer.out == ""
    assert says in answer.err


def test_torch_engines_are_planned_on_cores(yatt: Yatt) -> None:
    answer = yatt("plan", str(CONFIGS / "quickstart.yaml"), "--cluster", "2xcore", "-o", "json")
    assert answer.code == 0
    learn = next(row for row in answer.document["memory"] if row["stage"] == "learn")
    trainer = learn["roles"]["trainer"]
    assert trainer["weights"] == trainer["gradients"] == trainer["optimizer"] / 2
    assert learn["roles"]["rollout"]["weights"] == trainer["weights"], "it does not sleep"
    assert any("vocabulary" in line for line in answer.document["assumed"])


def timed_run(home: Home) -> str:
    """Creates five iterations whose shards took 0.2 seconds each."""
    run = seed_run(home, committed=5)
    for iteration in range(1, 6):
        timing = {f"shard-{shard:04d}": {"generate": 0.2} for shard in range(SHARDS)}
        write_telemetry(home.run_folder(run), 0, iteration, "collect.w00.t0001", timing)
        other = {shard: {"generate": 9.0} for shard in timing}
        write_telemetry(home.run_folder(run), 0, iteration, "collect.w01.t0001", other)
    return run


def test_times_from_a_recorded_run(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    run = timed_run(home)
    path = tmp_path / "toy.yaml"
    path.write_text(yaml_text(toy_spec().model_dump(mode="json")))
    answer = yatt("plan", str(path), "--cluster", "2xcore", "--calibrate", run, "-o", "json")
    assert answer.code == 0
    told = " ".join(answer.document["assumed"])
    assert f"from {run}: a decode step takes" in told
    assert "fitted to 10 shards" in told
    assert f"{run} has 0 iterations, but 3 are needed" in told, "no iteration has timing metrics"
    assert "differ in" not in told
    engine = answer.document["times"]["engines"]["rollout"]
    # Two steps per shard, of four sequences that attend to 3 and 4 tokens: together they took 0.2 seconds.
    again = 2 * engine["base_s"] + 8 * engine["per_sequence_s"] + 28 * engine["per_context_token_s"]
    assert again == pytest.approx(0.2, rel=1e-6), "another wave's shards of the same number do not count"


def test_times_of_another_model_on_other_engines_are_labelled_as_such(yatt: Yatt, home: Home) -> None:
    run = timed_run(home)
    answer = yatt("plan", SEVEN, "--cluster", "8xH200", *SMALL, "--calibrate", run, "-o", "json")
    assert answer.code == 0
    keys = "model, rollout.engine.kind, trainer.engine.kind"
    assert f"{run} and the plan differ in {keys}" in answer.document["assumed"]


def test_lost_files_of_a_run_are_ignored_in_calibration(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, committed=5)
    folder = home.run_folder(run)
    for iteration in range(1, 6):
        seconds = [0.2, float("nan"), "long", None, 0.2][iteration - 1]
        timing = {f"shard-{shard:04d}": {"generate": seconds} for shard in range(SHARDS)}
        write_telemetry(folder, 0, iteration, "collect.w00.t0001", timing)
    (first, *_) = sorted(folder.rglob("telemetry.collect.w00.t0001.json"))
    first.write_bytes(b"")
    with Ledger.open(home.ledger, migrate=False) as ledger:
        shutil.rmtree(folder / ledger.records.shards(run, 0, 5)[0].folder)
    answer = yatt("plan", str(CONFIGS / "quickstart.yaml"), "--cluster", "2xcore", "--calibrate", run, "-o", "json")
    assert answer.code == 0
    assert f"{run} has telemetry of {SHARDS - 1} shards, but 8 are needed" in " ".join(answer.document["assumed"])


def test_a_run_without_an_iteration_calibrates_nothing(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    run = seed_run(home, committed=0)
    answer = yatt("plan", SEVEN, "--cluster", "8xH200", "--calibrate", run)
    assert answer.code == 1
    assert f"run {run}: has no committed iteration" in answer.err


def test_train_names_features_that_are_not_available_yet(yatt: Yatt, home: Home) -> None:
    answer = yatt("train", SEVEN)
    assert answer.code == 2
    assert "rollout.engine.instances: 0 " in answer.err
    assert "trainer.engine.data_parallel_size: 0 " in answer.err
    assert "model.kind: 'sizes' " in answer.err
    fsdp2 = yatt(
        "train", str(CONFIGS / "local-model.yaml"), "--set", "trainer.engine={kind: fsdp2}", "--set", "exact=false"
    )
    assert fsdp2.code == 2
    assert "trainer.engine.ranks: 0 " in fsdp2.err
    assert not home.folder.exists()


@pytest.mark.parametrize(
    ("cluster", "changes", "said"),
    [
        ("2xH200", ("exact=aligned",), "exact: aligned holds on processors alone"),
        ("2xcore", ("exact=aligned",), ""),
        (
            "2xcore",
            ("exact=true", VLLM_NARROW),
            "exact: must be false or auto, because rollout.engine.dtype is bfloat16",
        ),
        ("2xcore", ("exact=auto", VLLM_NARROW), ""),
        ("2xH200", ("exact=true", VLLM_NARROW), ""),
    ],
)
def test_a_plan_refuses_what_cannot_be_exact_on_its_devices(
    yatt: Yatt, cluster: str, changes: tuple[str, ...], said: str
) -> None:
    settings = [part for change in changes for part in ("--set", change)]
    answer = yatt("plan", str(CONFIGS / "quickstart.yaml"), "--cluster", cluster, *settings)
    if said:
        assert answer.code == 2 and said in answer.err
    else:
        assert "Predicted iteration" in answer.out
