"""`yatt export` of a checkpoint from the real trainer: transformers loads it, and a new run can begin with it."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.aliases import CheckpointKey
from db.write.records import CheckpointRow
from flows.run.home import Home
from tests.engines.train.support import ONLY_FILE, weights_of
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.digests import weights_digest
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.input_building.materialise import initial_model, materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.keys import checkpoint_folder
from yatt_core.models.model_folder import WEIGHTS_INDEX
from yatt_core.protocols.engines import RankContext
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.wire import whole_files

SIZES = {"hidden_size": 32, "intermediate_size": 48, "layers": 2, "heads": 4, "key_value_heads": 2}
TREE: dict[str, Any] = {
    "name": "small",
    "data": {"sources": [{"kind": "reasoning_gym", "task": "spell_backward", "size": 40}], "held_out": 5, "probe": 5},
    "rollout": {"max_new_tokens": 8},
    "rewards": {
        "parts": [
            {"name": "exact", "function": "exact_match"},
            {"name": "sparse", "function": "tests.flows.reward_functions:sparse", "options": {"share": 1.0}},
            {"name": "length", "function": "length_range", "options": {"maximum": 1, "slack": 8}},
        ]
    },
    "trainer": {"engine": {"kind": "torch", "ranks": 1}},
}


def small_spec(model: dict[str, Any]) -> RunSpec:
    return parse_spec({**TREE, "model": model}, "small")


def trainer_of(spec: RunSpec, folder: Path) -> TorchTrainEngine:
    trainer = TorchTrainEngine(spec, RankContext(folder, folder / INPUTS, initial_model(spec, folder), 0))
    trainer.connect(0, 1, "")
    trainer.initialise()
    return trainer


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def spec(request: pytest.FixtureRequest) -> RunSpec:
    return small_spec({"kind": "from_config", **SIZES, "tie_embeddings": request.param})


@pytest.fixture
def run(home: Home, spec: RunSpec) -> str:
    """Creates a run whose trainer has a checkpoint with other weights than its inputs."""
    run = seed_run(home, committed=0, spec=spec, ends=False)
    folder = home.run_folder(run)
    name = str(checkpoint_folder(0, 0, 1))
    materialise(spec, folder)
    trainer = trainer_of(spec, folder)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in trainer.policy.loaded().parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    frozen = trainer.freeze_state()
    identity = CheckpointIdentity(run, 0, 0, 1, spec.digest, weights_digest(weights_of(trainer)))
    receipt = publish_checkpoint(folder, name, identity, frozen, 1000)
    with Ledger.open(home.ledger) as ledger:
        row = CheckpointRow(
            run, 0, 0, 1, name, receipt.manifest_sha256, receipt.bytes, receipt.weights_digest, receipt.seconds
        )
        ledger.records.checkpoint(Fence.of_run(run, 1), row)
    return run


def checkpoint_of(home: Home, run: str) -> Path:
    return home.run_folder(run) / checkpoint_folder(0, 0, 1) / "weights" / ONLY_FILE


def answers(model: Any) -> list[list[int]]:
    prompts = torch.tensor([[3, 4, 5], [9, 8, 7]])
    drawn: list[list[int]] = model.generate(prompts, max_new_tokens=12, do_sample=False).tolist()
    return drawn


def test_transformers_loads_it_and_generates_the_same_tokens(yatt: Yatt, home: Home, spec: RunSpec, run: str) -> None:
    document = yatt("export", run, "-o", "json").document
    folder = Path(document["folder"])
    assert folder == home.run_folder(run) / "exports" / "i000000"
    learned = AutoModelForCausalLM.from_pretrained(initial_model(spec, home.run_folder(run)))
    learned.load_state_dict(safetensors.torch.load_file(checkpoint_of(home, run)), strict=False)
    exported = AutoModelForCausalLM.from_pretrained(folder)
    assert exported.dtype == torch.float32
    for name, tensor in learned.state_dict().items():
        assert torch.equal(exported.state_dict()[name], tensor), name
    assert answers(exported) == answers(learned)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer.encode("olleh")) == "olleh"
    origin = json.loads((folder / "yatt.json").read_text())
    assert (origin["run"], origin["iteration"], origin["spec_digest"]) == (run, 0, spec.digest)


def test_the_export_answers_the_held_out_tasks_as_its_checkpoint_does(
    yatt: Yatt, home: Home, spec: RunSpec, run: str
) -> None:
    folder = Path(yatt("export", run, "-o", "json").document["folder"])
    sampled = ("-o", "json", "--samples", "32")
    of_checkpoint, of_folder, of_start = (
        yatt("evaluate", run, *which, *sampled).document
        for which in ((), ("--model", str(folder)), ("--model", initial_model(spec, home.run_folder(run))))
    )
    assert of_folder["results"] == of_checkpoint["results"] != of_start["results"]
    assert (of_folder["model"], of_folder["iteration"], of_checkpoint["iteration"]) == (str(folder), None, 0)
    wrong = yatt("evaluate", run, "--model", str(folder / "none"))
    assert wrong.code == 2 and f"--model: {folder / 'none'}" in wrong.err


def test_a_run_that_begins_with_the_export_has_the_same_weights_bit_for_bit(
    yatt: Yatt, home: Home, run: str, tmp_path: Path
) -> None:
    assert yatt("export", run, "--to", str(tmp_path / "out" / "model")).code == 0
    spec = small_spec({"kind": "folder", "path": str(tmp_path / "out" / "model")})
    materialise(spec, tmp_path)
    weights = safetensors.numpy.load_file(checkpoint_of(home, run))
    assert weights_digest(weights_of(trainer_of(spec, tmp_path))) == weights_digest(weights)


def test_an_alias_names_the_checkpoint(yatt: Yatt, home: Home, run: str, tmp_path: Path) -> None:
    with Ledger.open(home.ledger) as ledger:
        ledger.records.checkpoint(
            Fence.of_run(run, 1), CheckpointRow(run, 0, 1, 1, "checkpoints/newer", "", 0, "", 0.0)
        )
        ledger.aliases.promote(run, "champion", CheckpointKey(0, 0, 1), "ann", "good")
    document = yatt("export", run, "--alias", "champion", "--to", str(tmp_path / "champion"), "-o", "json").document
    assert document["iteration"] == 0 and (tmp_path / "champion" / "config.json").exists()
    assert "no alias candidate" in yatt("export", run, "--alias", "candidate").err


def test_large_weights_are_split_into_several_files(
    yatt: Yatt, home: Home, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_files, "FILE_BYTES", 20_000)
    target = tmp_path / "parts"
    document = yatt("export", run, "--to", str(target), "-o", "json").document
    assert len(document["files"]) > 2
    assert sorted(document["files"]) == sorted(path.name for path in target.glob("*.safetensors"))
    index = json.loads((target / WEIGHTS_INDEX).read_text())
    assert index["metadata"]["total_size"] == document["bytes"]
    assert len(index["weight_map"]) == document["tensors"]
    exported = AutoModelForCausalLM.from_pretrained(target).state_dict()
    for name, tensor in safetensors.torch.load_file(checkpoint_of(home, run)).items():
        assert torch.equal(exported[name], tensor), name


def test_weights_are_converted_on_request(yatt: Yatt, home: Home, run: str) -> None:
    answer = yatt("export", run, "--dtype", "bfloat16")
    assert "tensors of bfloat16" in answer.out
    exported = AutoModelForCausalLM.from_pretrained(home.run_folder(run) / "exports" / "i000000-bfloat16")
    assert exported.dtype == torch.bfloat16
    for name, tensor in safetensors.torch.load_file(checkpoint_of(home, run)).items():
        assert torch.equal(exported.state_dict()[name], tensor.bfloat16()), name


def test_an_existing_folder_stays_unchanged(yatt: Yatt, run: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    answer = yatt("export", run, "--to", str(tmp_path / "mine"))
    assert (answer.code, answer.out) == (2, "")
    assert f"{tmp_path / 'mine'} already exists" in answer.err
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_path_below_a_file_is_refused(yatt: Yatt, run: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    answer = yatt("export", run, "--to", str(tmp_path / "file" / "deep" / "model"))
    assert (answer.code, answer.out) == (2, "")
    assert f"{tmp_path / 'file'} is a file" in answer.err
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_a_failed_export_leaves_nothing(yatt: Yatt, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(whole_files, "_write_file", refuses)
    answer = yatt("export", run, "--to", str(tmp_path / "out" / "model"))
    assert (answer.code, answer.out) == (1, "")
    assert "cannot be written" in answer.err
    assert list((tmp_path / "out").iterdir()) == []


def test_a_damaged_checkpoint_is_not_exported(yatt: Yatt, home: Home, run: str, tmp_path: Path) -> None:
    path = checkpoint_of(home, run)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    answer = yatt("export", run, "--to", str(tmp_path / "out"))
    assert (answer.code, answer.out) == (1, "")
    assert f"{path}: sha256 is" in answer.err
    assert not (tmp_path / "out").exists()


def test_a_virtual_run_has_no_model(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)
    with Ledger.open(home.ledger) as ledger:
        ledger.records.checkpoint(Fence.of_run(run, 1), CheckpointRow(run, 0, 0, 1, "checkpoints/x", "", 0, "", 0.0))
    answer = yatt("export", run)
    assert answer.code == 2 and answer.err.startswith(f"error: run {run}: ") and "virtual" in answer.err
