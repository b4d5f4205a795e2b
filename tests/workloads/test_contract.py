"""The contract's engine: what a workload may return, what is refused with its place, and states of any number of ranks."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.services import ROOT
from yatt_core import progress
from yatt_core.engines.registry import build_train_engine
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.rendezvous import LOOPBACK, hold_address
from yatt_core.engines.train.workload.ranks import WorkloadRanks
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError, NumericError, StorageFullError
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import RankContext, TrainEngine
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt, PromptRef, RowsTask
from yatt_core.spec import RunSpec, load_spec
from yatt_core.workloads.contract import advanced
from yatt_core.workloads.inputs import materialise_workload

SPEC = ROOT / "tests" / "workloads" / "counting.yaml"
OWN = """\
from tests.workloads.counting import Counting
class Mine(Counting):
    pass
"""


def spec_of(*overrides: str) -> RunSpec:
    return load_spec(SPEC, overrides)


def engine_of(spec: RunSpec, folder: Path, rank: int = 0, ranks: int = 1, address: str = "") -> TrainEngine:
    engine = build_train_engine(spec, RankContext(folder, folder / "inputs", "", 0))
    engine.connect(rank, ranks, address)
    return engine


def task_of(phase: str, iteration: int) -> BatchTask:
    number = iteration - 1
    return BatchTask(WorkKey("tried", 0, iteration, phase), 1, (), rows=(PromptRef(number, 0, number),))


def learnt(spec: RunSpec, folder: Path, iterations: int) -> TrainEngine:
    materialise_workload(spec, folder)
    engine = engine_of(spec, folder)
    engine.initialise()
    for iteration in range(1, iterations + 1):
        prepared = engine.prepare(task_of("prepare", iteration))
        assert prepared is not None
        engine.learn(task_of("learn", iteration), prepared)
    return engine


@pytest.mark.parametrize(
    ("settings", "raised", "text"),
    [
        ("{odd: 1}", ConfigurationError, r"workload.settings: .*Counting refuses them: .*unknown: \['odd'\]"),
        ("{broken: link}", ConfigurationError, r"build_inputs has made a link, below/linked.npy; expected files alone"),
        ("{broken: data}", ConfigurationError, r"^workload.settings: a.txt:3: is empty$"),
        ("{broken: text}", ConfigurationError, r"build_inputs failed: .*counting.py:\d+: UnicodeDecodeError: 'utf-8'"),
        ("{broken: key}", ConfigurationError, r"Counting: build_inputs failed: .*counting.py:\d+: KeyError: 'text'"),
        ("{broken: draw}", ConfigurationError, r"Counting: draw: column 'numbers' is list; expected a numpy array"),
        ("{broken: update}", ConfigurationError, r"Counting: update failed: .*counting.py:\d+: RuntimeError: the sum"),
        (
            "{broken: disk}",
            StorageFullError,
            r"Counting: update failed: .*counting.py:\d+: OSError.* No space .*; free some",
        ),
        ("{broken: memory}", InfrastructureError, r"Counting: update failed: .*MemoryError: no more memory"),
        ("{broken: device}", InfrastructureError, r"Counting: update failed: .*OutOfMemoryError: no more memory"),
        ("{broken: loss, at: 1}", NumericError, r"Counting: update returned loss nan, which is not finite"),
        ("{broken: metric skipped}", ConfigurationError, r"update returned a metric called 'skipped'"),
        (
            "{broken: metric weights_digest}",
            ConfigurationError,
            r"a metric called 'weights_digest', which is YATT's own",
        ),
        (
            "{broken: metric evaluation/mean}",
            ConfigurationError,
            r"'evaluation/mean', .* expected .* none below evaluation/",
        ),
        ("{broken: metric seconds/learn}", ConfigurationError, r"'seconds/learn', .* none of YATT's timings"),
        ("{broken: facts}", ConfigurationError, r"the facts of its state are no JSON"),
        ("{broken: tuple}", ConfigurationError, r"no JSON: 'count' would become .*lists instead of tuples"),
        ("{broken: numbered}", ConfigurationError, r"no JSON: 'count' would become .*expected texts as names"),
        ("{broken: bfloat16}", ConfigurationError, r"'total' of its state is torch.bfloat16"),
        ("{broken: hidden}", ConfigurationError, r"'total' of its state is torch.bfloat16"),
        ("{broken: float8}", ConfigurationError, r"'total' of its state is torch.float8"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(
    settings: str, raised: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(raised, match=text):
        learnt(spec_of(f"workload.settings={settings}"), tmp_path, 1)


def test_names_and_ranks_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"workload.kind: .*has no 'Count'; did you mean 'Counting'"):
        materialise_workload(spec_of("workload.kind=tests.workloads.counting:Count"), tmp_path)
    with pytest.raises(ConfigurationError, match=r"workload.kind: 'counts' is not an entry point of 'yatt.workloads'"):
        spec_of("workload.kind=counts")
    with pytest.raises(ConfigurationError, match=r"is no workload: missing: build_inputs, begin"):
        materialise_workload(spec_of("workload.kind=fractions:Fraction"), tmp_path)
    with pytest.raises(ConfigurationError, match=r"workload.settings: only a workload of your own|settings: only"):
        spec_of("workload={kind: language, settings: {a: 1}}")
    with pytest.raises(ConfigurationError, match=r"file: expected with kind custom"):
        spec_of("workload={kind: custom}")


def test_inputs_are_built_once_and_verified(tmp_path: Path) -> None:
    first = materialise_workload(spec_of(), tmp_path)
    assert materialise_workload(spec_of(), tmp_path) == first
    with pytest.raises(ConfigurationError, match="built for another seed"):
        materialise_workload(spec_of("workload.settings={at: 2}"), tmp_path)
    manifest = json.loads((tmp_path / "inputs" / "manifest.json").read_text())
    assert list(manifest["files"]) == ["numbers.npy"]
    (tmp_path / "inputs" / "numbers.npy").write_bytes(b"")
    with pytest.raises(DataError, match=r"numbers.npy is missing or damaged"):
        materialise_workload(spec_of(), tmp_path)


def test_a_file_is_vouched_for_by_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    spec = spec_of(f"workload={{kind: custom, file: '{path}:Mine'}}")
    assert spec.workload.sha256 is not None and spec.workload.file == f"{path}:Mine"
    path.write_text(f"{OWN}# changed\n")
    with pytest.raises(ConfigurationError, match=r"workload.file: .*mine.py has changed"):
        materialise_workload(spec, tmp_path / "run")


def test_a_second_call_learns_nothing_and_a_state_is_taken_up(tmp_path: Path) -> None:
    engine = learnt(spec_of(), tmp_path, 3)
    prepared = engine.prepare(task_of("prepare", 4))
    assert prepared is not None
    receipt = engine.learn(task_of("learn", 4), prepared)
    assert engine.learn(task_of("learn", 4), prepared) is receipt
    saved = tmp_path / "saved"
    saved.mkdir()
    engine.freeze_state()(saved)
    other = engine_of(spec_of(), tmp_path)
    with pytest.raises(DataError, match="holds version 4, expected 3"):
        other.restore(saved, 3)
    other.restore(saved, 4)
    assert other.weights_digest() == engine.weights_digest()
    key = RowsTask(WorkKey("tried", 0, 4, "evaluate"), 1)
    assert other.evaluate(key) == engine.evaluate(key)
    assert list(engine.evaluate(key).metrics) == ["evaluation/mean"]


def test_rows_divided_over_ranks_are_taken_up_by_any_number(tmp_path: Path) -> None:
    """The sums of this workload do not depend on the ranks, so that neither do its bits."""
    kind = "workload.kind=tests.workloads.counting:Divided"
    alone = learnt(spec_of(kind), tmp_path, 2)
    pair = spec_of(kind, "trainer.engine.ranks=2")
    address = hold_address(LOOPBACK)
    saved = tmp_path / "saved"
    saved.mkdir()
    prepared: dict[int, PrepareReceipt] = {}
    meeting = threading.Barrier(2, timeout=60)

    def rank(number: int) -> str:
        engine = engine_of(pair, tmp_path, number, 2, address)
        engine.initialise()
        for iteration in (1, 2):
            receipt = engine.prepare(task_of("prepare", iteration))
            if receipt is not None:
                prepared[iteration] = receipt
            meeting.wait()
            engine.learn(task_of("learn", iteration), prepared[iteration])
        engine.freeze_state()(saved)
        return engine.weights_digest()

    with ThreadPoolExecutor(2) as threads:
        digests = list(threads.map(rank, range(2)))
    assert digests == [alone.weights_digest()] * 2
    other = engine_of(spec_of(kind), tmp_path)
    other.restore(saved, 2)
    assert other.weights_digest() == alone.weights_digest()
    key = RowsTask(WorkKey("tried", 0, 2, "evaluate"), 1)
    assert other.evaluate(key) == alone.evaluate(key)


def test_what_ranks_exchange_and_what_a_workload_says_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline counts from it; a phase that learnt from short ones would otherwise end a longer one."""
    ranks = WorkloadRanks(Collective())
    for piece in (lambda: ranks.sum(torch.ones(1)), lambda: ranks.gathered({"a": np.ones(1)}), lambda: advanced("a")):
        monkeypatch.setattr(progress, "_latest", None)
        piece()
        assert progress.seconds_since_progress() is not None


def test_a_workload_of_one_rank_refuses_several(tmp_path: Path) -> None:
    code = "from tests.workloads.counting import Counting\nclass Alone(Counting):\n    ranks = 'one'\n"
    (tmp_path / "alone.py").write_text(code)
    spec = spec_of(f"workload={{kind: custom, file: '{tmp_path}/alone.py:Alone'}}", "trainer.engine.ranks=2")
    with pytest.raises(ConfigurationError, match=r"trainer.engine.ranks: .* trains on one rank only; expected 1"):
        materialise_workload(spec, tmp_path / "run")
