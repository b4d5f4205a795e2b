"""A run's inputs: built once, completely or not at all, verified, and read back unchanged."""

import errno
import json
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.crash import run_until
from tests.inputs.example_specs import SPELL, SUM, VIRTUAL, make_inputs, png, run_spec, write_jsonl
from yatt_core.datasets.sources import collect_prompts
from yatt_core.errors import ConfigurationError, DataError, StorageFullError
from yatt_core.input_building import materialise as inputs_module
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.reader import Inputs
from yatt_core.models.model_folder import make_model
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.media import read_media, stored_addresses
from yatt_core.prompts.prompt_files import PromptFile
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.spec.sections.model import ModelFromConfig

SPEC = run_spec(SPELL, seed=3)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns a run folder with the inputs of SPEC, and their receipt."""
    folder = tmp_path_factory.mktemp("made") / "runs" / "r"
    return folder, materialise(SPEC, folder)


@pytest.fixture
def own(made, tmp_path):
    """Returns a copy of the run folder that a test may damage."""
    return shutil.copytree(made[0], tmp_path / "r")


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_everything_is_there_and_counted(made):
    folder, receipt = made
    collection = collect_prompts(SPEC.data, SPEC.seed)
    train = list(collection.train[0])
    found = Inputs.open(folder / receipt.folder, SPEC)
    assert (receipt.held_out_prompts, receipt.probe_prompts, receipt.train_prompts) == (
        60,
        40,
        len(train),
    )
    assert tuple(found.held_out) == collection.held_out and tuple(found.probe) == collection.probe
    assert found.demonstrations(50) == train[:50]
    assert receipt.model_path == str(folder / "inputs" / "model")
    manifest = json.loads((folder / "inputs" / "manifest.json").read_text())
    assert set(manifest["files"]) == set(contents(folder / "inputs")) - {"manifest.json"}
    assert [p.name for p in folder.iterdir()] == ["inputs"]


def test_a_second_call_reuses_and_another_folder_gets_the_same_bytes(made, tmp_path):
    folder, receipt = made
    before = (folder / "inputs").stat().st_mtime_ns
    assert materialise(SPEC, folder) == receipt
    assert (folder / "inputs").stat().st_mtime_ns == before
    torch.manual_seed(99)
    torch.rand(7)
    again = materialise(SPEC, tmp_path / "other")
    assert contents(tmp_path / "other" / "inputs") == contents(folder / "inputs")
    assert (again.data_digest, again.manifest_sha256) == (receipt.data_digest, receipt.manifest_sha256)


def test_the_quickstart_shape(tmp_path):
    """The figures match the recorded recipe: vocabulary, prompt and answer tokens, parameters."""
    spec = run_spec({**SPELL, "size": 20_000}, data={"held_out": 300, "probe": 200})
    receipt = materialise(spec, tmp_path)
    codec = open_codec(spec, receipt.model_path)
    prompts = Inputs.open(tmp_path / "inputs", spec).held_out
    assert 30 <= receipt.vocabulary <= 40 and len(codec.tokenizer) == receipt.vocabulary
    assert receipt.parameters == pytest.approx(400_000, rel=0.02)
    assert {len(codec.encode_prompt(p)) for p in prompts} == {6, 7}
    assert {len(codec.encode_answer(p.answer)) for p in prompts} == {4, 5}
    assert {codec.decode(codec.encode_answer(p.answer)) for p in prompts} == {p.answer.lower() for p in prompts}
    assert len({p.answer.lower() for p in prompts}) == 300 and receipt.train_prompts > 15_000


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_made_models_load_and_depend_only_on_the_seed(tmp_path, architecture, tied):
    from transformers import AutoModelForCausalLM

    model = ModelFromConfig(architecture=architecture, hidden_size=32, heads=4, key_value_heads=2, tie_embeddings=tied)
    for name, seed, noise in (("a", 0, 1), ("b", 0, 2), ("c", 1, 1)):
        torch.manual_seed(noise)
        state = torch.random.get_rng_state()
        make_model(model, 37, seed, tmp_path / name)
        assert torch.equal(torch.random.get_rng_state(), state)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a")["model.safetensors"] != contents(tmp_path / "c")["model.safetensors"]
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert network.config.eos_token_id == 1 and network.config.pad_token_id == 0
    assert (network.get_input_embeddings().weight is network.get_output_embeddings().weight) == tied
    logits = network(torch.tensor([[4, 5, 2]])).logits
    assert logits.shape == (1, 3, 37) and bool(torch.isfinite(logits).all())


def test_references_walk_epochs_over_a_mixture(tmp_path):
    spec = run_spec({**SPELL, "size": 120, "weight": 2.0}, SUM, data={"held_out": 20, "probe": 10}, **VIRTUAL)
    materialise(spec, tmp_path)
    found = Inputs.open(tmp_path / "inputs", spec)
    references, _ = draw(spec.data, spec.seed, Cursor.start(spec.data), 600)
    prompts = [found.prompt(reference) for reference in references]
    size = found.train_sizes[0]
    first = [p for p in prompts if p.source == 0]
    assert sorted(p.index for p in first[:size]) == sorted(p.index for p in first[size : 2 * size]) == list(range(size))
    assert [p.index for p in first[:size]] != [p.index for p in first[size : 2 * size]]
    assert [p.source for p in prompts] == [r.source for r in references]
    assert [found.prompt(r) for r in reversed(references)] == prompts[::-1]
    assert [Inputs.open(tmp_path / "inputs", spec).prompt(r) for r in references[500:510]] == prompts[500:510]
    demonstrations = found.demonstrations(30)
    assert [sum(p.source == s for p in demonstrations) for s in (0, 1)] == [20, 10]
    assert not {p.text.lower() for p in (*prompts, *demonstrations)} & {
        p.text.lower() for p in (*found.held_out, *found.probe)
    }


def test_a_virtual_run_has_no_model(tmp_path):
    receipt = materialise(run_spec(SPELL, **VIRTUAL), tmp_path)
    assert (receipt.model_path, receipt.parameters, receipt.vocabulary) == ("", 0, 1000)
    assert not (tmp_path / "inputs" / "model").exists()


def test_a_damaged_file_is_named(own):
    path = own / "inputs" / "held_out.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match=r"held_out\.parquet is missing or damaged"):
        materialise(SPEC, own)
    path.unlink()
    with pytest.raises(DataError, match=r"held_out\.parquet is missing or damaged"):
        materialise(SPEC, own)
    (own / "inputs" / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest\.json cannot be read"):
        materialise(SPEC, own)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 4},
        {"model": {"kind": "from_config", "layers": 3}},
        {"data": {"sources": [SUM], "held_out": 60, "probe": 40}},
    ],
)
def test_inputs_of_another_spec_are_refused_and_harmless_changes_are_not(own, change):
    tree = SPEC.model_dump(mode="json")
    with pytest.raises(ConfigurationError, match=r"another seed, model, .* or set of sources"):
        materialise(type(SPEC).model_validate({**tree, **change}), own)
    tree["data"]["prompts_per_iteration"] = 7
    materialise(type(SPEC).model_validate(tree), own)


def test_a_kill_after_any_durable_step_leaves_nothing_or_all(tmp_path):
    for i in range(2):
        (tmp_path / f"{i}.png").write_bytes(png(i))
    rows = ({"prompt": f"q{i}", "image": f"{i % 2}.png"} for i in range(120))
    spec = run_spec({**write_jsonl(tmp_path / "a.jsonl", rows), "image_field": "image"}, **VIRTUAL)
    expected = materialise(spec, tmp_path / "whole")
    killed = True
    step = 0
    while killed:
        step += 1
        folder = tmp_path / f"runs-{step}"
        killed, acknowledged = run_until(partial(make_inputs, spec.model_dump_json()), folder, step)
        assert acknowledged == ([] if killed else ["made"])
        assert materialise(spec, folder) == expected
        assert [p.name for p in folder.iterdir()] == ["inputs"]
        images = [read_media(folder / "inputs", name) for name in stored_addresses(folder / "inputs")]
        assert len(images) == 2 and set(images) == {png(0), png(1)}
    assert step > 20


@pytest.mark.parametrize(
    ("sources", "digest", "identity", "tokenizer"),
    [
        (
            [SPELL, SUM],
            "d490bdd98406e82e5194ce4f91836c17fdc1067f49a9c403a48901046f829d1a",
            "942bb2bae0dd6c333842d3a0d2db9fd09b118f098f12da71f3846c753a53a7e4",
            "b1d6ce2cb8f2ce4a80995bc4d3472025c4cc0d968c4c1b531101671c2b0f2474",
        ),
        (
            [{"kind": "jsonl", "path": "a.jsonl", "weight": 2.0}, SPELL],
            "20dfdaf91a6a41f70637d7ed8863b4947fb75ad7dc00915cc3bbf63a431265e1",
            "a852d22f86b1523b1b6fa3f427274e54359224ccdb1eb4d29dcf984f7a170574",
            "d7e1f9e7f278fa28457b3cfe7b1a9cace7698853afdc66c5dd170e97d52b50cc",
        ),
    ],
)
def test_inputs_match_those_of_earlier_versions(tmp_path, monkeypatch, sources, digest, identity, tokenizer):
    """A change to these digests changes every run: older runs can then no longer be resumed exactly."""
    monkeypatch.chdir(tmp_path)
    rows = ({"prompt": f"What is {i} plus 1?", "answer": str(i + 1), "level": i % 3} for i in range(200))
    write_jsonl(Path("a.jsonl"), rows)
    model = {"kind": "from_config", "architecture": "qwen2"}  # the default of these versions
    receipt = materialise(run_spec(*sources, model=model, seed=3 if sources[0] is SPELL else 0), tmp_path / "r")
    manifest = json.loads((tmp_path / "r" / "inputs" / "manifest.json").read_text())
    assert (receipt.data_digest, manifest["identity"]) == (digest, identity)
    assert manifest["files"]["model/tokenizer.json"] == tokenizer


def test_inputs_in_one_row_group_are_read_as_those_in_many(made, own):
    """Earlier versions wrote their inputs in one row group."""
    path = own / "inputs" / "train.parquet"
    pq.write_table(pq.read_table(path), path, compression="zstd")
    many = PromptFile(made[0] / "inputs" / "train.parquet")
    one = PromptFile(path)
    assert (
        pq.ParquetFile(path).num_row_groups == 1 < pq.ParquetFile(made[0] / "inputs" / "train.parquet").num_row_groups
    )
    assert list(one) == list(many) and len(one) == len(many)
    assert [one[row] for row in (0, 255, 256, len(one) - 1)] == [many[row] for row in (0, 255, 256, len(many) - 1)]


def test_a_failure_while_making_leaves_nothing_behind(tmp_path, monkeypatch):
    def die(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(inputs_module, "make_model", die)
        with pytest.raises(StorageFullError, match="No space left"):
            materialise(SPEC, tmp_path)
    assert not list(tmp_path.iterdir())


def test_everything_is_synced_before_it_is_published(tmp_path, monkeypatch):
    events = []
    real_rename = Path.rename
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: events.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    monkeypatch.setattr(Path, "rename", lambda path, target: events.append(f"to {target}") or real_rename(path, target))
    materialise(SPEC, tmp_path)
    published = events.index(f"to {tmp_path / 'inputs'}")
    before = set(events[:published])
    for path in (tmp_path / "inputs").rglob("*"):
        name = path.relative_to(tmp_path / "inputs")
        if name.name != "manifest.json":
            assert str(tmp_path / ".inputs.tmp" / name) in before, name
    assert f"to {tmp_path / '.inputs.tmp' / 'manifest.json'}" in before
    assert events[published - 1] == str(tmp_path / ".inputs.tmp") and events[published + 1] == str(tmp_path)
    events.clear()
    materialise(SPEC, tmp_path)
    assert events == [str(tmp_path)]


def test_a_changed_source_does_not_reach_a_run(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", ({"prompt": f"q{i}"} for i in range(200)))
    spec = run_spec(source, **VIRTUAL)
    first = materialise(spec, tmp_path / "r")
    (tmp_path / "a.jsonl").unlink()
    assert materialise(spec, tmp_path / "r") == first


def test_demonstrations_need_answers_and_enough_prompts(tmp_path):
    rows = [{"prompt": f"q{i}", "answer": "a"} for i in range(200)]
    del rows[55]["answer"]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    spec = run_spec(source, sft={"demonstrations": 20}, **VIRTUAL)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"sft: prompt 0/train/a\.jsonl:56 has no reference answer"):
            materialise(spec, tmp_path / "r")
    with pytest.raises(ConfigurationError, match=r"sft\.demonstrations: 150 of 150 .*100 training prompts"):
        materialise(run_spec(source, sft={"demonstrations": 150}, **VIRTUAL), tmp_path / "r")


def test_other_libraries_can_read_the_tables(made):
    table = pq.read_table(made[0] / "inputs" / "train.parquet")
    assert table.column_names == ["source", "index", "prompt_id", "text", "answer", "entry", "messages"]
    assert np.array_equal(table["index"].to_numpy(), np.arange(len(table)))
    assert json.loads(table["entry"][0].as_py())["task"] == "spell_backward"


def folder_spec(path, **rest):
    return run_spec(SPELL, model={"kind": "folder", "path": str(path)}, **rest)


@pytest.fixture
def given(made, tmp_path):
    """Returns a model folder outside any run."""
    return shutil.copytree(made[0] / "inputs" / "model", tmp_path / "given")


def test_a_given_model_folder_is_described(made, given, tmp_path):
    receipt = materialise(folder_spec(given), tmp_path / "r")
    assert receipt.model_path == str(given)
    assert (receipt.vocabulary, receipt.parameters) == (made[1].vocabulary, made[1].parameters)
    assert not (tmp_path / "r" / "inputs" / "model").exists()
    (given / "tokenizer.json").write_text((given / "tokenizer.json").read_text() + " ")
    with pytest.raises(ConfigurationError, match=r"has changed since the run began: tokenizer\.json"):
        materialise(folder_spec(given), tmp_path / "r")


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def sharded(folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))


def other_tokenizer(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 20}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, r"given .*folder"),
        (lambda f: (f / "config.json").unlink(), r"has no config\.json"),
        (lambda f: (f / "config.json").write_text("{"), r"config\.json cannot be read as JSON"),
        (lambda f: (f / "config.json").write_text("{}"), "no model_type"),
        (lambda f: (f / "model.safetensors").unlink(), r"has no weights \(\*\.safetensors\)$"),
        (
            pickled,
            r"has no weights .*pytorch_model\.bin may be pickles, which can run code: convert to safetensors",
        ),
        (sharded, r"lacks weights .*: model-1\.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b"12345678{"), r"model\.safetensors .*safetensors file: "),
        (lambda f: (f / "tokenizer.json").unlink(), r"has no tokenizer; .*tokenizer\.json"),
        (other_tokenizer, r"the tokenizer has \d+ tokens,.* 20;"),
    ],
)
def test_missing_parts_of_a_model_folder_are_named(given, tmp_path, damage, message):
    damage(given)
    with pytest.raises(ConfigurationError, match=rf"model\.path: .*{message}"):
        materialise(folder_spec(given), tmp_path / "r")
    assert not (tmp_path / "r" / "inputs").exists()


def test_parts_that_follow_the_data_stay_when_the_rule_changes(tmp_path, monkeypatch):
    rows = [{"prompt": f"q{i}", "answer": "a"} for i in range(40)]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    spec = run_spec(source, data={"held_out": None, "probe": None}, sft={}, **VIRTUAL)
    receipt = materialise(spec, tmp_path / "r")
    assert (receipt.train_prompts, receipt.held_out_prompts, receipt.probe_prompts) == (33, 4, 3)
    assert len(Inputs.open(tmp_path / "r" / "inputs", spec).demonstrations(None)) == 33
    monkeypatch.setattr("yatt_core.datasets.sources.PART_OF_DATA", 4)
    monkeypatch.setattr("yatt_core.inputs.demonstrations.MOST_DEMONSTRATIONS", 5)
    assert materialise(spec, tmp_path / "r") == receipt
    assert len(Inputs.open(tmp_path / "r" / "inputs", spec).demonstrations(None)) == 33
    assert materialise(spec, tmp_path / "other").held_out_prompts == 10
    without = run_spec(source, data={"held_out": None, "probe": None}, **VIRTUAL)
    assert materialise(without, tmp_path / "without").probe_prompts == 0


@pytest.mark.parametrize(("held_out", "left_out"), [([], 9), ([0, 1, 7], 20)])
def test_rows_that_repeat_a_held_out_prompt_are_counted(tmp_path, caplog, held_out, left_out):
    rows = [{"prompt": f"question {row % 3}", "answer": str(row)} for row in range(30)]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    if held_out:
        write_jsonl(tmp_path / "h.jsonl", [{"prompt": f"question {row}"} for row in held_out])
        source = {**source, "held_out_path": str(tmp_path / "h.jsonl")}
    data = {"held_out": len(held_out) or 1, "probe": 0, "prompts_per_iteration": 2, "logical_shards": 1}
    receipt = materialise(run_spec(source, data=data, **VIRTUAL), tmp_path / "r")
    own = 0 if held_out else 1
    assert receipt.train_prompts == 30 - left_out - own
    (line,) = caplog.messages
    assert f"a.jsonl): {left_out} of 30 rows are left out of training" in line
    assert receipt.left_out == (line,), "the driver says it too"


def test_rows_without_repetition_are_all_used(tmp_path, caplog):
    rows = [{"prompt": f"question {row}", "answer": "1"} for row in range(30)]
    data = {"held_out": 4, "probe": 0, "prompts_per_iteration": 2, "logical_shards": 1}
    materialise(run_spec(write_jsonl(tmp_path / "a.jsonl", rows), data=data, **VIRTUAL), tmp_path / "r")
    assert not caplog.messages


def test_rows_that_repeat_a_probe_prompt_are_counted(tmp_path, caplog):
    rows = [{"prompt": f"question {row // 2}", "answer": "1"} for row in range(30)]
    data = {"held_out": 2, "probe": 3, "prompts_per_iteration": 2, "logical_shards": 1}
    receipt = materialise(run_spec(write_jsonl(tmp_path / "a.jsonl", rows), data=data, **VIRTUAL), tmp_path / "r")
    assert receipt.train_prompts == 30 - 4 - 6
    (line,) = caplog.messages
    assert "5 of 30 rows are left out" in line
