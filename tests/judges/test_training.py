"""A judge that is trained as part of a run's inputs: the same bytes each time, vouched for, and better than chance."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inputs.example_specs import EXACT, SPELL, run_spec, write_jsonl
from tests.judges.conftest import JUDGE, SIZES, TRAINING, judged_spec
from tests.judges.parts import endpoint
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.input_building.corruption import Corruption
from yatt_core.input_building.judge_models import check_before_start
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import judge_model_path, read_manifest
from yatt_core.judges.codec import open_judge_codec
from yatt_core.protocols.judges import JudgeItem

WORDS = ["nus", "noom", "tac", "god", "llab"]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_manifest_says_how_good_it_is_and_vouches_for_its_files(judged):
    spec, folder = judged
    manifest = read_manifest(folder, spec)
    made = manifest["judges"]["judge"]
    assert made["path"] == "judges/judge" and made["steps"] == 6 and made["pairs"] == 40
    assert made["accuracy"] == pytest.approx(1 - (made["false_yes"] + made["false_no"]) / 2)
    assert "judges/judge/model.safetensors" in manifest["files"]
    assert judge_model_path(folder, manifest, spec.rewards.judges[0]) == str(folder / "judges" / "judge")


def test_the_same_bytes_whatever_ran_before(judged, tmp_path):
    spec, folder = judged
    torch.manual_seed(99)
    torch.set_num_threads(2)
    try:
        materialise(spec, tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert files(tmp_path / "inputs" / "judges" / "judge") == files(folder / "judges" / "judge")
    assert (tmp_path / "inputs" / "manifest.json").read_bytes() == (folder / "manifest.json").read_bytes()


def test_what_ends_while_it_is_trained_leaves_nothing(judged, tmp_path, monkeypatch):
    spec, folder = judged

    def ended(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Corruption, "wrong", ended)
        with pytest.raises(KeyboardInterrupt):
            materialise(spec, tmp_path)
    assert list(tmp_path.iterdir()) == []
    materialise(spec, tmp_path)
    assert (tmp_path / "inputs" / "manifest.json").read_bytes() == (folder / "manifest.json").read_bytes()


def test_damage_is_noticed_and_another_judge_is_another_run(judged, tmp_path):
    spec, folder = judged
    run = tmp_path / "r"
    shutil.copytree(folder, run / "inputs")
    materialise(spec, run)
    for changed in (judged_spec(template="{response} for {prompt}?"), judged_spec(max_new_tokens=3)):
        with pytest.raises(ConfigurationError, match="another seed, model, judge, teacher, critic or set of sources"):
            materialise(changed, run)
    materialise(judged_spec(weight=2.0, judgements=5, temperature=0.5, aggregate="vote"), run)
    weights = run / "inputs" / "judges" / "judge" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(DataError, match=r"model\.safetensors is missing or damaged"):
        materialise(spec, run)


def test_a_given_folder_is_vouched_for_too(judged, tmp_path):
    _, folder = judged
    given_folder = shutil.copytree(folder / "judges" / "judge", tmp_path / "judge")
    spec = judged_spec(model={"kind": "folder", "path": str(given_folder)})
    materialise(spec, tmp_path / "r")
    manifest = json.loads((tmp_path / "r" / "inputs" / "manifest.json").read_text())
    assert judge_model_path(tmp_path / "r" / "inputs", manifest, spec.rewards.judges[0]) == str(given_folder)
    (given_folder / "config.json").write_text((given_folder / "config.json").read_text() + " ")
    with pytest.raises(
        ConfigurationError, match=r"rewards\.parts 'judge': .* has changed since the run began: config\.json"
    ):
        materialise(spec, tmp_path / "r")


def test_a_judge_that_could_never_be_asked_is_said_before_the_start(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match=r"rewards\.parts 'judge': model\.path: .*none .*folder"):
        check_before_start(judged_spec(model={"kind": "folder", "path": str(tmp_path / "none")}))
    rewards = {"parts": [*EXACT, endpoint("https://a.example/v1", api_key_env="NO_KEY").model_dump()]}
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="NO_KEY is not set"):
        check_before_start(run_spec(SPELL, rewards=rewards, exact=False))


def test_questions_are_short_and_answers_one_token(judged):
    """What every question says, the prompt's common words too, is one token a piece; words that differ are spelled out."""
    spec, folder = judged
    part = spec.rewards.judges[0]
    codec = open_judge_codec(str(folder / "judges" / "judge"), part.template, part.max_new_tokens)
    prompt = "Spell this word backward (example: sun -> nus): moon"
    (question,) = codec.encode([JudgeItem(0, prompt, "noom", "noom", (0,))])
    assert len(question.tokens) == len(["template", "phrase", *" moon", " ", *"noom", "<sep>"])
    assert [len(codec.encode_answer(word)) for word in ("yes", "no")] == [2, 2]


def test_it_learns_and_stops_when_it_is_good_enough(tmp_path, caplog):
    source = write_jsonl(tmp_path / "a.jsonl", [{"prompt": f"Say ok {n}", "answer": "ok"} for n in range(200)])
    training = {**TRAINING, "max_steps": 200, "stop_accuracy": 0.9, "learning_rate": 3e-3, "probe_every": 10}
    model = {"kind": "trained", "network": {"kind": "from_config", **SIZES}, "training": training}
    rewards = {"parts": [{"name": "exact", "function": "exact_match"}, {**JUDGE, "model": model}]}
    with caplog.at_level("INFO"):
        spec = run_spec(source, data={"held_out": 20, "probe": 20}, rewards=rewards)
        materialise(spec, tmp_path / "r")
    made = read_manifest(tmp_path / "r" / "inputs", spec)["judges"]["judge"]
    assert made["accuracy"] >= 0.9 and made["steps"] < 200
    assert f"after {made['steps']} steps" in caplog.text


@given(st.integers(0, 2**64 - 1), st.sampled_from(WORDS), st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_a_wrong_answer_is_wrong_and_a_function_of_its_seed(seed, answer, prompt):
    corruption = Corruption(WORDS, ["Spell sun backward:"])
    made = corruption.wrong(seed, answer, prompt)
    assert made.strip().casefold() != answer
    assert made == Corruption(WORDS, ["Spell sun backward:"]).wrong(seed, answer, prompt)


def test_wrong_answers_come_in_all_kinds():
    corruption = Corruption(WORDS, ["Spell sun backward:"])
    made = [corruption.wrong(seed, "noom", "Spell this word backward: moon") for seed in range(2000)]
    assert {len(text) for text in made} >= set(range(8)), "too short and too long"
    assert {"moon", "mnoo", "nom", "nooom", "nus", "backward:"} <= set(made)
    near = sum(len(text) == 4 and sum(a != b for a, b in zip(text, "noom", strict=True)) == 1 for text in made)
    assert near > 100, "one letter off"
    assert any("\N{REPLACEMENT CHARACTER}" in text for text in made), "characters that no prompt has"
