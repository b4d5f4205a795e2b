"""The example judge: the same bytes each time, complete or not at all, better than chance; and its command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.judge import __main__ as command
from examples.judge.corruption import Corruption
from examples.judge.folder import judge_of, make_judge
from examples.judge.recipe import TRAINING as FULL_TRAINING
from examples.judge.training import TOKENS_AFTER_RESPONSE
from tests.inputs.example_specs import run_spec, write_jsonl
from tests.judges.conftest import JUDGE, NETWORK, TRAINING, judged_spec
from tests.judges.parts import item
from tests.services import ROOT
from tests.spec.trees import tells
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.input_building.judge_models import check_before_start
from yatt_core.judges.codec import open_judge_codec
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.spec import load_spec

GENRM = ROOT / "configs" / "genrm.yaml"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns a spec, the folder of its judge, and the facts of its training."""
    folder = tmp_path_factory.mktemp("made") / "below" / "judge"
    spec = judged_spec(folder)
    return spec, folder, make_judge(spec, NETWORK, TRAINING)


def test_the_facts_say_how_good_it_is_and_a_run_may_start_with_it(made):
    spec, folder, facts = made
    assert (facts.steps, facts.pairs) == (6, 40)
    assert facts.accuracy == pytest.approx(1 - (facts.false_yes + facts.false_no) / 2)
    check_before_start(spec)
    assert [path.name for path in folder.parent.iterdir()] == ["judge"]


def test_the_same_bytes_whatever_ran_before(made, tmp_path):
    _, folder, facts = made
    torch.manual_seed(99)
    torch.set_num_threads(2)
    try:
        assert make_judge(judged_spec(tmp_path / "again"), NETWORK, TRAINING) == facts
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert files(tmp_path / "again") == files(folder)


def test_another_seed_or_template_makes_another_judge(made, tmp_path):
    spec, folder, _ = made
    make_judge(judged_spec(tmp_path / "seed").model_copy(update={"seed": spec.seed + 1}), NETWORK, TRAINING)
    assert files(tmp_path / "seed")["model.safetensors"] != files(folder)["model.safetensors"]
    make_judge(judged_spec(tmp_path / "template", template="Right? {prompt} {response}"), NETWORK, TRAINING)
    assert files(tmp_path / "template")["tokenizer.json"] != files(folder)["tokenizer.json"]


def test_what_ends_while_it_is_trained_leaves_nothing(made, tmp_path, monkeypatch):
    def ended(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Corruption, "wrong", ended)
        with pytest.raises(KeyboardInterrupt):
            make_judge(judged_spec(tmp_path / "judge"), NETWORK, TRAINING)
    assert list(tmp_path.iterdir()) == []
    make_judge(judged_spec(tmp_path / "judge"), NETWORK, TRAINING)
    assert files(tmp_path / "judge") == files(made[1])


def test_questions_are_short_and_answers_one_token(made):
    """The template and the prompt's common phrase are one token each; words that vary are spelled letter by letter."""
    spec, folder, _ = made
    part = spec.rewards.judges[0]
    codec = open_judge_codec(str(folder), part.template, part.max_new_tokens)
    prompt = "Spell this word backward (example: sun -> nus): moon"
    (question,) = codec.encode([item(0, "noom", prompt)])
    assert len(question) == len(["template", "phrase", *" moon", " ", *"noom", "<sep>"])
    tokenizer = load_tokenizer(folder)
    assert [len(tokenizer(word, add_special_tokens=False)["input_ids"]) for word in ("yes", "no")] == [1, 1]


def test_the_response_starts_where_a_question_without_it_ends(made):
    spec, folder, _ = made
    codec = open_judge_codec(str(folder), spec.rewards.judges[0].template, 2)
    question, blank = codec.encode([item(1, "nus"), item(1, "")])
    start = len(blank) - TOKENS_AFTER_RESPONSE
    assert codec.decode(question[start:-TOKENS_AFTER_RESPONSE]) == "nus"
    assert question[:start].tolist() == blank[:start].tolist()


def test_it_learns_and_stops_when_it_is_good_enough(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", [{"prompt": f"Say ok {n}", "answer": "ok"} for n in range(200)])
    better = {"max_steps": 200, "stop_accuracy": 0.9, "learning_rate": 3e-3, "probe_every": 10}
    part = {**JUDGE, "model": {"kind": "folder", "path": str(tmp_path / "judge")}}
    rewards = {"parts": [{"name": "exact", "function": "exact_match"}, part]}
    spec = run_spec(source, data={"held_out": 20, "probe": 20}, rewards=rewards)
    said: list[tuple[int, float]] = []
    facts = make_judge(spec, NETWORK, TRAINING.model_copy(update=better), lambda *now: said.append(now))
    assert facts.accuracy >= 0.9 and facts.steps < 200
    assert [step for step, _ in said] == list(range(1, facts.steps + 1)) and said[-1][1] == facts.accuracy


def test_prompts_without_reference_answers_and_questions_without_room_are_named(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", [{"prompt": f"Say {n}"} for n in range(200)])
    part = {**JUDGE, "model": {"kind": "folder", "path": str(tmp_path / "judge")}}
    rewards = {"parts": [{"name": "exact", "function": "exact_match"}, part]}
    with pytest.raises(DataError, match=r"prompt 0/train/a\.jsonl:\d+ has no reference answer"):
        make_judge(run_spec(source, rewards=rewards), NETWORK, TRAINING)
    with pytest.raises(DataError, match=r"rewards\.parts 'judge': .* room for 6; shorten"):
        make_judge(judged_spec(tmp_path / "judge"), NETWORK.model_copy(update={"max_positions": 8}), TRAINING)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"parse": {"kind": "number"}}, ("rewards.parts 'judge': parse.kind: ", "yes_no")),
        ({"template": "{response} for {prompt}?"}, ("rewards.parts 'judge': template: ", "{prompt}", "{response}")),
        ({"template": "{prompt}: {response} "}, ("rewards.parts 'judge': template: ", "{prompt}", "{response}")),
        ({"template": "Right? {response}"}, ("rewards.parts 'judge': template: ", "{prompt}", "{response}")),
        ({"model": {"kind": "sizes"}}, ("rewards.parts: ", "folder", "none")),
    ],
)
def test_a_judge_that_cannot_be_trained_here_is_refused(tmp_path, changes, facts):
    with pytest.raises(ConfigurationError) as caught:
        judge_of(judged_spec(tmp_path / "judge", **changes))
    assert tells(str(caught.value), *facts)


def test_the_config_has_a_judge_that_the_example_can_train(tmp_path):
    """Trains with fewer steps; a run may start with the resulting folder."""
    assert judge_of(load_spec(GENRM))[1] == ROOT / "data" / "judge"
    spec = load_spec(GENRM, [f"rewards.parts.1.model.path={tmp_path / 'judge'}", "data.sources.0.size=2000"])
    short = FULL_TRAINING.model_copy(update={"max_steps": 2, "batch_size": 4})
    assert make_judge(spec, training=short).steps == 2
    check_before_start(spec)


def test_the_command_says_how_good_the_judge_is_and_does_not_overwrite_it(tmp_path, capsys):
    folder = tmp_path / "judge"
    arguments = [str(GENRM), "--set", f"rewards.parts.1.model.path={folder}", "--set", "data.sources.0.size=2000"]
    arguments += ["--max-steps", "2"]
    assert command.main(arguments) == 0
    said = capsys.readouterr()
    assert tells(said.out, str(folder), "%", "after 2 steps") and said.err.startswith("warning: ")
    before = files(folder)
    assert command.main(arguments) == 2
    said = capsys.readouterr()
    assert tells(said.err, "error: ", f"{GENRM}: ", "rewards.parts 'judge': model.path: ", str(folder), "exists")
    assert said.out == "" and files(folder) == before


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["none.yaml"], ("none.yaml",)),
        ([str(ROOT / "configs" / "quickstart.yaml")], ("quickstart.yaml: ", "rewards.parts: ", "generative")),
        ([str(GENRM), "--set", "data.probe=0"], ("genrm.yaml: ", "data.probe: ", "1 or more")),
        ([str(GENRM), "--set", "sed=1"], ("--set sed=1", "'seed'")),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, arguments, facts):
    assert command.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and all(fact in said for fact in facts)


@pytest.mark.parametrize("arguments", [[], [str(GENRM), "--max-steps", "0"], [str(GENRM), "--max-steps", "many"]])
def test_a_wrong_argument_is_exit_code_2(arguments):
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0 and "python -m examples.judge configs/genrm.yaml" in capsys.readouterr().out
