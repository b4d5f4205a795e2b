"""Diffusion whose images samplers draw: the bits of a run whose ranks sample, killed anywhere, on any number of samplers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.numpy import load_file

from benchmarks.workloads.alone import begun
from flows.reports.audit import verify_run
from ops.preflight.workload_trial import try_workload
from ops.queries.images import iteration_images
from tests.matrix import in_verify
from tests.needs import NEEDS_DIFFUSERS
from tests.workloads.in_process import OwnRun
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.engines.rollout.workload.engine import WorkloadSampler
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.experience.sampled import SAMPLED
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import SampleTask
from yatt_core.spec import load_spec
from yatt_core.workloads.checking import check_inputs
from yatt_core.workloads.contract import Columns, Draw
from yatt_core.workloads.diffusion.adapters import is_adapter
from yatt_core.workloads.diffusion.drawing import ShapeDrawing
from yatt_core.workloads.diffusion.drawing_settings import DrawingSettings
from yatt_core.workloads.diffusion.trajectories import sample
from yatt_core.workloads.finding import make_workload
from yatt_core.workloads.inputs import materialise_workload

pytestmark = NEEDS_DIFFUSERS
SPEC = Path(__file__).parent / "drawing.yaml"
SAMPLED_BY = "workload.sampled_by=rollout"
KILLED_AT = (
    "collect:1", "sampled:1:1", "after collect:1", "prepare:1", "after prepare:1", "learn:2", "after learn:2", "sync:2",
    "after sync:2", "checkpoint:2", "sampled:0:3", "commit:3", "after learn:3",
)  # fmt: skip
SOME = ("sampled:0:1", "after learn:2", "sync:3")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def instances(count: int) -> tuple[str, str]:
    return SAMPLED_BY, f"rollout.engine.instances={count}"


def digests(run: OwnRun) -> tuple[str, ...]:
    """Returns the digests of weights, experience and metrics."""
    results = run.results()
    found = (results.weights_digest, results.experience_digest, results.metrics_digest)
    assert all(found)
    return tuple(str(each) for each in found)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> OwnRun:
    """An undisturbed run whose only rank samples."""
    torch.set_num_threads(1)
    own = OwnRun.of(tmp_path_factory.mktemp("alone"), SPEC)
    own.drive()
    return own


@pytest.mark.parametrize("count", [2, *in_verify(1, 3)])
def test_samplers_draw_what_the_rank_would(count: int, alone: OwnRun, tmp_path: Path) -> None:
    apart = OwnRun.of(tmp_path, SPEC, *instances(count))
    apart.drive()
    assert digests(apart) == digests(alone)
    assert sorted(apart.drawn) == [(iteration, shard) for iteration in (1, 2, 3) for shard in range(3)]
    assert apart.updates == [0, 1, 2, 3]
    with apart.ledger() as ledger, alone.ledger() as other:
        shown = [
            iteration_images(*pair, 3).images
            for pair in ((ledger, apart.home, apart.run), (other, alone.home, alone.run))
        ]
        phases = {row.phase for row in ledger.phases.attempts(apart.run, 0, 2)}
        report = verify_run(ledger, apart.run, apart.folder, None)
    assert shown[0] == shown[1]
    assert {"collect", "sync"} < phases
    assert report.sound, report.disagreement
    assert not list(apart.folder.rglob(f"{SAMPLED}-*")), "what is in the columns is not kept twice"


@pytest.mark.parametrize("places", [SOME, pytest.param(KILLED_AT, marks=pytest.mark.verify)], ids=["some", "all"])
@pytest.mark.parametrize("cold", [1, *in_verify(0)])
def test_a_run_killed_in_its_phases_gives_the_same_bits(
    places: tuple[str, ...], cold: int, alone: OwnRun, tmp_path: Path
) -> None:
    """Samplers and ranks outlive their driver every other time; otherwise the next one restores, replays and syncs."""
    struck = OwnRun.of(tmp_path, SPEC, *instances(2))
    reached = [place for number, place in enumerate(places) if struck.drive(place, cold=number % 2 == cold) is None]
    outcome = struck.drive(cold=True)
    assert outcome is not None and outcome.state == "completed"
    assert reached == list(places)
    assert digests(struck) == digests(alone)
    with struck.ledger() as ledger:
        report = verify_run(ledger, struck.run, struck.folder, None)
    assert report.sound, report.disagreement


def test_what_is_sealed_before_a_kill_is_not_drawn_again_even_by_other_samplers(alone: OwnRun, tmp_path: Path) -> None:
    struck = OwnRun.of(tmp_path, SPEC, *instances(3))
    assert struck.drive("sampled:1:2") is None
    assert struck.drawn[3:] == [(2, 0), (2, 1)]
    struck.revise("rollout.engine.instances=1")
    assert struck.drive("after collect:2") is None
    assert struck.drawn[5:] == [(2, 2)]
    struck.revise("rollout.engine.instances=2")
    struck.drive()
    assert struck.drawn[6:] == [(3, 0), (3, 1), (3, 2)]
    assert digests(struck) == digests(alone)


def test_a_damaged_shard_is_drawn_again(alone: OwnRun, tmp_path: Path) -> None:
    struck = OwnRun.of(tmp_path, SPEC, *instances(2))
    assert struck.drive("after collect:2") is None
    (sealed,) = struck.folder.glob(f"experience/b000/i000002/{SAMPLED}-0001.*/columns.safetensors")
    sealed.write_bytes(sealed.read_bytes()[:-1])
    struck.drive()
    assert struck.drawn[6:] == [(2, 1), (3, 0), (3, 1), (3, 2)]
    assert digests(struck) == digests(alone)


def test_columns_that_are_lost_after_the_commit_are_drawn_under_the_weights_of_then(
    alone: OwnRun, tmp_path: Path
) -> None:
    struck = OwnRun.of(tmp_path, SPEC, *instances(2), "checkpoints.every=3")
    struck.drive(until=2)
    (sealed,) = struck.folder.glob("experience/b000/i000001/prepared.*/rank-00.safetensors")
    sealed.unlink()
    for folder in struck.folder.glob("checkpoints/b000-i000002*"):
        (folder / "manifest.json").unlink()  # so that the updates are replayed
    struck.drive(cold=True)
    assert struck.drawn.count((1, 0)) == 2
    assert digests(struck)[::2] == digests(alone)[::2]
    assert not list(struck.folder.rglob(f"{SAMPLED}-*")), "what is drawn for a replay is not kept either"


def test_several_ranks_learn_from_what_samplers_draw(alone: OwnRun, tmp_path: Path) -> None:
    """With four ranks, one has no shard."""
    struck = OwnRun.of(tmp_path, SPEC, *instances(2), "trainer.engine.ranks=4")
    assert struck.drive("after prepare:2") is None
    struck.drive(cold=True)
    assert digests(struck)[::2] == digests(alone)[::2]


def test_adapters_alone_are_sent(tmp_path: Path) -> None:
    adapters = "workload.settings.adapters={rank: 2, alpha: 4}"
    alone, apart = (
        OwnRun.of(tmp_path / name, SPEC, adapters, *more) for name, more in (("one", ()), ("two", instances(2)))
    )
    alone.drive()
    assert apart.drive("after sync:2") is None
    apart.drive(cold=True)
    assert digests(apart) == digests(alone)
    assert apart.group is not None and apart.samplers is not None
    sent = [name for name, _ in apart.group.engine.stream_weights()]
    assert sent and all(is_adapter(name) for name in sent)


def test_a_run_that_continues_another_one_is_sampled_from_its_network(alone: OwnRun, tmp_path: Path) -> None:
    with alone.ledger() as ledger:
        newest = ledger.records.checkpoints(alone.run)[0]
    start = f"workload.start.path={alone.folder / newest.folder}"
    adapters = "workload.settings.adapters={rank: 2, alpha: 4}"
    stages = [OwnRun.of(tmp_path / f"{len(more)}", SPEC, start, adapters, *more) for more in ((), instances(2))]
    for stage in stages:
        stage.drive(until=2)
    assert digests(stages[0]) == digests(stages[1])


def test_samplers_in_bfloat16_give_latents(tmp_path: Path) -> None:
    """The gap to the trainer's log-probabilities is measured, and a kill changes no bit."""
    half = (*instances(2), "rollout.engine.dtype=bfloat16", "workload.settings.keep=latents")
    undisturbed, struck = (OwnRun.of(tmp_path / name, SPEC, *half) for name in ("undisturbed", "struck"))
    undisturbed.drive()
    assert struck.drive("sampled:1:2") is None
    struck.drive(cold=True)
    assert digests(struck) == digests(undisturbed)
    (sealed,) = struck.folder.glob("experience/b000/i000003/prepared.*/rank-00.safetensors")
    latents = torch.from_numpy(load_file(sealed)["latents"])
    assert torch.equal(latents, latents.bfloat16().float()) and latents.dtype == torch.float32
    with struck.ledger() as ledger:
        gaps = [value for _, value in ledger.metrics.history(struck.run, "log_probability_gap")]
    assert len(gaps) == 3 and all(0.0 < gap < 0.1 for gap in gaps)


def test_seeds_are_not_sampled_again_in_another_type(tmp_path: Path) -> None:
    own = OwnRun.of(tmp_path, SPEC, *instances(1), "rollout.engine.dtype=bfloat16")
    with pytest.raises(
        ConfigurationError,
        match=r"^workload.settings.keep: seeds .* expected latents, or float32 in rollout.engine.dtype",
    ):
        own.drive()


def test_a_sampler_draws_only_under_the_weights_that_are_asked_for(tmp_path: Path) -> None:
    spec = load_spec(SPEC, [*instances(1)])
    materialise_workload(spec, tmp_path)
    sampler = build_rollout_engine(spec, "", tmp_path / "inputs")
    assert isinstance(sampler, WorkloadSampler)
    task = SampleTask(WorkKey("tried", 0, 1, "collect"), term=1, number=0, version=0)
    with pytest.raises(InfrastructureError, match=r"version -1.* needs version 0"):
        sampler.sample(task)
    weights = {name: tensor.numpy() for name, tensor in sampler._tensors.items()}
    sampler.update_weights(weights, 0)
    sealed = sampler.sample(task)
    first = (tmp_path / sealed.folder / "columns.safetensors").read_bytes()
    sampler.sleep()
    assert sampler.sample(task) == sealed, "it is sealed"
    other = load_spec(SPEC, [*instances(1), "workload.tunable.noise_level=0.5"])
    changed = build_rollout_engine(other, "", tmp_path / "inputs")
    assert isinstance(changed, WorkloadSampler)
    changed.update_weights(weights, 0)
    again = changed.sample(SampleTask(task.key, term=2, number=0, version=0))
    assert again != sealed, "what other settings have drawn is not used"
    assert (tmp_path / again.folder / "columns.safetensors").read_bytes() != first


def test_an_iteration_is_drawn_once_for_all_its_shards_and_each_gets_rows_of_its_own(tmp_path: Path) -> None:
    spec = load_spec(SPEC, [*instances(1)])
    materialise_workload(spec, tmp_path)
    sampler = WorkloadSampler(spec, tmp_path, tmp_path / "inputs")
    sampler.keep_initial_weights()
    key = WorkKey("tried", 0, 1, "collect")
    given = []

    def write_into(self: ShapeDrawing, columns: Columns, draw: Draw) -> Columns:
        given.append({name: column.copy() for name, column in columns.items()})
        for column in columns.values():
            column[:] = 0
        return columns

    with (
        mock.patch.object(ShapeDrawing, "draw", autospec=True, side_effect=ShapeDrawing.draw) as drawn,
        mock.patch.object(ShapeDrawing, "sample_shard", write_into),
        mock.patch("yatt_core.engines.rollout.workload.engine.ShowsImages", str),
    ):
        assert sampler.count_shards(SampleTask(key, term=1, number=0, version=0)) == 3
        for shard in (0, 1, 2):
            sampler.sample(SampleTask(replace(key, shard=shard), term=1, number=0, version=0))
        assert drawn.call_count == 1
        shutil.rmtree(tmp_path / "experience")
        sampler.sample(SampleTask(replace(key, shard=1), term=1, number=0, version=0))
        assert drawn.call_count == 1
        sampler.count_shards(SampleTask(replace(key, iteration=2), term=1, number=1, version=0))
        assert drawn.call_count == 2
    assert given[3].keys() == given[1].keys() and all((given[3][name] == given[1][name]).all() for name in given[1])
    assert given[1]["seed"].all()


@pytest.mark.parametrize("shards", [[], [slice(0, 8)], [slice(0, 8), slice(4, 24)]])
def test_shards_that_are_not_all_rows_once_are_refused_before_anything_is_sampled(
    shards: list[slice], tmp_path: Path
) -> None:
    with (
        mock.patch.object(ShapeDrawing, "shards", lambda self, columns: shards),
        pytest.raises(ConfigurationError, match=r"^workload\.kind: .*BrightDrawing: shards: .*expected "),
    ):
        OwnRun.of(tmp_path, SPEC, *instances(1)).drive()


def test_a_class_that_cannot_be_sampled_apart_is_refused(tmp_path: Path) -> None:
    counting = Path(__file__).parents[1] / "counting.yaml"
    with pytest.raises(ConfigurationError, match=r"workload\.sampled_by: .*SamplesApart"):
        OwnRun.of(tmp_path, counting, SAMPLED_BY).drive()


def test_a_model_that_is_divided_over_the_ranks_has_no_samplers(tmp_path: Path) -> None:
    sharded = "workload.kind=yatt_core.workloads.diffusion.sharded_drawing:ShardedDrawing"
    with pytest.raises(ConfigurationError, match=r"workload\.sampled_by: .*divides its model"):
        OwnRun.of(tmp_path, SPEC, sharded, SAMPLED_BY).drive()


@pytest.mark.parametrize("more", [(), instances(2), ("trainer.engine.ranks=2",)], ids=["alone", "samplers", "ranks"])
def test_a_folder_of_images_that_is_lost_is_drawn_again(more: tuple[str, ...], tmp_path: Path) -> None:
    """Right before the update, and of an earlier iteration, whose update is made again."""
    own = OwnRun.of(tmp_path, SPEC, *more)
    assert own.drive("learn:3") is None
    folders = [one for number in (1, 3) for one in own.folder.glob(f"experience/b000/i{number:06d}/prepared.*/images")]
    before = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    assert len(folders) == 2 and all(before)
    shutil.rmtree(folders[0])
    next(folders[1].glob("*.png")).unlink()
    for folder in own.folder.glob("checkpoints/b000-i000002*"):
        (folder / "manifest.json").unlink()  # so that the updates are made again
    own.drive(cold=True)
    assert [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders] == before


def test_images_of_latents_in_bfloat16_are_drawn_again_as_they_were(tmp_path: Path) -> None:
    """The ranks, in float32, would draw others from the same seeds."""
    half = (*instances(1), "rollout.engine.dtype=bfloat16", "workload.settings.keep=latents")
    own = OwnRun.of(tmp_path, SPEC, *half)
    assert own.drive("learn:1") is None
    (folder,) = own.folder.glob("experience/b000/i000001/prepared.*/images")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    own.drive(until=1)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_trial_says_what_samplers_get(tmp_path: Path) -> None:
    adapters = "workload.settings.adapters={rank: 2, alpha: 4}"
    whole, small, none = (
        try_workload(tmp_path / "home", load_spec(SPEC, more))
        for more in ([*instances(2)], [*instances(2), adapters], [])
    )
    assert whole.sampler_bytes > 10 * small.sampler_bytes > 0
    assert none.sampler_bytes == 0
    narrow = load_spec(SPEC, [*instances(2), "rollout.engine.dtype=bfloat16"])
    with pytest.raises(ConfigurationError, match=r"^workload.settings.keep: seeds"):
        try_workload(tmp_path / "home", narrow)
    with pytest.raises(ConfigurationError, match=r"^workload.settings.keep: seeds"):
        check_inputs(narrow, make_workload(narrow))


def test_an_image_takes_fewer_steps_in_training_than_in_an_evaluation(tmp_path: Path) -> None:
    """As by default; the evaluation's steps are all straight."""
    settings = load_spec(SPEC).workload.settings
    assert DrawingSettings().steps < DrawingSettings().evaluation_steps
    fewer = {**settings, "steps": 2, "window": 1, "evaluation_steps": 5}
    workload = begun(ShapeDrawing, tmp_path / "inputs", seed=5, iterations=1, **fewer)
    draw = Draw(seed=5, iteration=1, number=0)
    with mock.patch("yatt_core.workloads.diffusion.drawing.sample", wraps=sample) as sampled:
        workload.sample(workload.draw(draw), draw)
        trained = {call.args[3].steps for call in sampled.call_args_list}
        sampled.reset_mock()
        workload.evaluate()
    assert trained == {2}
    assert {(call.args[3].steps, len(call.args[3].window)) for call in sampled.call_args_list} == {(5, 0)}
