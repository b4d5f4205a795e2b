"""What others read of an export: a LoRA run's adapters in peft, the type that a run began with, the tokens of its prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.records import CheckpointRow
from flows.run.home import Home
from tests.engines.train.support import weights_of
from tests.models.folders import make_folder
from tests.ops.cli.test_export import SIZES, TREE, trainer_of
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run
from yatt_core.checkpoints.classifier import classifier_config
from yatt_core.checkpoints.export import _with_padding, dtype_of_model
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.digests import weights_digest
from yatt_core.input_building.materialise import initial_model, materialise
from yatt_core.keys import checkpoint_folder
from yatt_core.spec import parse_spec

LORA = {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}


def checkpointed(home: Home, **changes: Any) -> tuple[str, Any]:
    """Creates a run of one checkpoint, with other weights than its inputs; returns its name and its spec."""
    spec = parse_spec({**TREE, **changes}, "small")
    run = seed_run(home, committed=0, spec=spec, ends=False)
    folder = home.run_folder(run)
    name = str(checkpoint_folder(0, 0, 1))
    materialise(spec, folder)
    trainer = trainer_of(spec, folder)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in trainer.policy.loaded().parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    identity = CheckpointIdentity(run, 0, 0, 1, spec.digest, weights_digest(weights_of(trainer)))
    receipt = publish_checkpoint(folder, name, identity, trainer.freeze_state(), 1000)
    row = CheckpointRow(
        run, 0, 0, 1, name, receipt.manifest_sha256, receipt.bytes, receipt.weights_digest, receipt.seconds
    )
    with Ledger.open(home.ledger) as ledger:
        ledger.records.checkpoint(Fence.of_run(run, 1), row)
    return run, spec


def test_peft_reads_the_adapters_of_a_run_and_computes_what_the_merged_weights_do(
    yatt: Yatt, home: Home, tmp_path: Path
) -> None:
    from peft import PeftModel

    model = {"kind": "from_config", **SIZES}
    trainer = {"engine": {"kind": "torch", "ranks": 1}, "lora": LORA}
    run, spec = checkpointed(home, model=model, trainer=trainer)
    answer = yatt("export", run, "--adapter", "--to", str(tmp_path / "adapter"), "-o", "json")
    assert answer.code == 0, answer.err
    assert yatt("export", run, "--to", str(tmp_path / "merged")).code == 0
    start = initial_model(spec, home.run_folder(run))
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == start
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(start), tmp_path / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10]])
    with torch.no_grad():
        ours, theirs = (each(tokens).logits.log_softmax(-1) for each in (merged, adapted))
        before = AutoModelForCausalLM.from_pretrained(start)(tokens).logits.log_softmax(-1)
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert not torch.allclose(ours, before, atol=1e-2)


def test_a_run_without_adapters_has_none_to_export(yatt: Yatt, home: Home) -> None:
    run, _ = checkpointed(home, model={"kind": "from_config", **SIZES})
    answer = yatt("export", run, "--adapter")
    assert (answer.code, answer.out) == (2, "")
    assert "leave out --adapter" in answer.err
    assert "leave out --dtype" in yatt("export", run, "--adapter", "--dtype", "float32").err


def test_an_export_has_the_type_with_which_its_run_began(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    assert dtype_of_model(folder) == "float32"
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor.bfloat16() for name, tensor in weights.items()}, folder / "model.safetensors")
    assert dtype_of_model(folder) == "bfloat16"


@pytest.mark.parametrize(("architecture", "other"), [("qwen2", "Qwen2Tokenizer"), ("qwen3", None), ("llama", None)])
def test_an_export_says_whose_tokens_others_get(yatt: Yatt, home: Home, architecture: str, other: str | None) -> None:
    run, _ = checkpointed(home, model={"kind": "from_config", "architecture": architecture, **SIZES})
    warning = yatt("export", run, "-o", "json").document["warning"]
    if other is None:
        assert warning is None
    else:
        assert f"AutoTokenizer reads it as {other}, which gives other tokens" in warning


def test_a_model_made_here_names_what_transformers_4_reads(home: Home) -> None:
    run, spec = checkpointed(home, model={"kind": "from_config", "architecture": "qwen3", **SIZES})
    folder = Path(initial_model(spec, home.run_folder(run)))
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


@pytest.mark.parametrize(
    ("more", "pad", "named"),
    [
        (("<|reserved_1|>",), None, "<|reserved_1|>"),
        ((), None, None),
        ((), "<|im_end|>", None),
        (("<pad>",), "<pad>", "<pad>"),
    ],
)
def test_a_reward_model_is_padded_by_a_token_that_no_text_has(
    tmp_path: Path, more: tuple[str, ...], pad: str | None, named: str | None
) -> None:
    folder = make_folder(tmp_path / "model", more=more)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token": pad}))
    found = _with_padding(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert found == (None if named is None else tokenizer.convert_tokens_to_ids(named))
    if named is not None:
        assert tokenizer.pad_token == named
    assert classifier_config({"architectures": ["Qwen2ForCausalLM"]}, found)["pad_token_id"] == found
