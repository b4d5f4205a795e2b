"""Reward functions in a file beside the spec: fixed by digest, carried with the run, executed from the run's copy only."""

import pytest

from yatt_core.code_files import fetch_code, settle_code
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.named_code import CODE, COPY
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.rewards.scoring import RewardScorer, Scored
from yatt_core.spec import load_spec, override_spec, parse_spec
from yatt_core.storage.run_store import NoStore

PROMPT = Prompt(0, 0, "p", "text", "answer", {})
BASE = """\
data: {sources: [{kind: reasoning_gym, task: spell_backward, size: 64}]}
rewards: {parts: [{name: own, file: "reward.py:score"}]}
"""


def write(folder, value, spec="name: own\n" + BASE):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reward.py").write_text(f"def score(prompt, response):\n    return {value}\n")
    (folder / "spec.yaml").write_text(spec)
    return folder / "spec.yaml"


def scored(spec, run_folder=None):
    (score,) = RewardScorer(spec.rewards, run_folder).score([Scored(PROMPT, Completion.of_turns("text", ["text"], 1))])
    return score.total


def test_the_path_is_relative_to_the_file_that_names_it_and_files_of_one_name_do_not_collide(tmp_path):
    first = load_spec(write(tmp_path / "a", 1.0))
    second = load_spec(write(tmp_path / "b", 2.0))
    (tmp_path / "top.yaml").write_text("extends: a/spec.yaml\nname: extending\n")
    assert (scored(first), scored(second), scored(load_spec(tmp_path / "top.yaml")), scored(first)) == (1, 2, 1, 1)


def test_a_run_keeps_its_copy_when_the_file_changes(tmp_path):
    spec = load_spec(write(tmp_path, 1.0))
    run = tmp_path / "run"
    settle_code(spec, run, NoStore())
    write(tmp_path, 2.0)
    assert scored(spec, run) == 1.0
    (tmp_path / "reward.py").unlink()
    assert scored(parse_spec(spec.model_dump(mode="json"), "ledger"), run) == 1.0
    with pytest.raises(ConfigurationError, match=r"rewards\.parts 'own': file: .*reward\.py does not exist"):
        scored(spec)


def test_a_revision_takes_the_new_contents_only_if_it_names_the_file(tmp_path):
    spec = load_spec(write(tmp_path, 1.0))
    write(tmp_path, 2.0)
    same = override_spec(spec, ["rewards.parts.0.weight=0.5"], "run")
    assert same.rewards.functions[0].sha256 == spec.rewards.functions[0].sha256
    again = override_spec(spec, [f"rewards.parts.0.file={tmp_path}/reward.py:score"], "run")
    assert scored(again) == 2.0
    with pytest.raises(ConfigurationError, match=r"has changed: its sha256 is"):
        scored(same)


def test_a_copy_with_other_contents_is_refused(tmp_path):
    spec = load_spec(write(tmp_path, 1.0))
    run = tmp_path / "run"
    settle_code(spec, run, NoStore())
    (copy,) = (run / CODE).glob(f"*/{COPY}")
    copy.write_text("def score(prompt, response):\n    return 1e9\n")
    with pytest.raises(DataError, match=r"reward\.py: sha256 is .* expected"):
        scored(spec, run)


def test_a_fork_takes_the_copy_of_its_parent(tmp_path):
    spec = load_spec(write(tmp_path, 1.0))
    parent = tmp_path / "parent"
    fork = tmp_path / "fork"
    settle_code(spec, parent, NoStore())
    (tmp_path / "reward.py").unlink()
    settle_code(spec, fork, NoStore(), parent)
    assert scored(spec, fork) == 1.0


class Tier(NoStore):
    """A durable tier that keeps folders in memory."""

    def __init__(self, run_folder):
        self.run_folder = run_folder
        self.kept = {}

    def publish(self, folder):
        self.kept[folder] = {path.name: path.read_bytes() for path in (self.run_folder / folder).iterdir()}

    def fetch(self, folder, manifest_sha256=None):
        (self.run_folder / folder).mkdir(parents=True, exist_ok=True)
        for name, data in self.kept.get(folder, {}).items():
            (self.run_folder / folder / name).write_bytes(data)
        return folder in self.kept


def test_another_machine_fetches_the_copy_from_the_durable_tier(tmp_path):
    spec = load_spec(write(tmp_path, 1.0))
    here = tmp_path / "here"
    there = tmp_path / "there"
    store = Tier(here)
    settle_code(spec, here, store)
    (tmp_path / "reward.py").unlink()
    store.run_folder = there
    fetch_code(spec, there, store)
    assert scored(spec, there) == 1.0


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def scor(prompt, response): ...", r"reward\.py has no 'score'; did you mean 'scor'"),
        ("score = 3.0", r"is float, which cannot be called"),
        ("x = 1\ndef score(:\n", r"reward\.py:2: cannot be executed: SyntaxError"),
        ("x = 1\n\ny = 1 / 0\n", r"reward\.py:3: cannot be executed: ZeroDivisionError"),
        ("import sys\nsys.exit(0)\n", r"reward\.py:2: cannot be executed: SystemExit"),
        ("import beside\nscore = beside.score\n", r"reward\.py:1: cannot be executed: ModuleNotFoundError"),
        ("def score(prompt): ...", r"cannot be called as \(prompt, response\)"),
    ],
)
def test_an_unusable_file_is_a_configuration_error_with_file_and_line(tmp_path, code, message):
    path = write(tmp_path, 1.0)
    (tmp_path / "beside.py").write_text("def score(prompt, response): return 1.0\n")
    (tmp_path / "reward.py").write_text(code)
    with pytest.raises(ConfigurationError, match=rf"rewards\.parts 'own': file '.*reward\.py:score'.*{message}"):
        scored(load_spec(path))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ('{name: own, file: "missing.py:score"}', r"rewards\.parts\.0\.file: .*missing\.py does not exist"),
        ('{name: own, file: "spec.yaml"}', r"rewards\.parts\.0\.file: expected path/of/file\.py:function"),
        ('{name: own, file: "reward.py"}', r"rewards\.parts\.0\.file: expected path/of/file\.py:function"),
        ('{name: own, file: "reward.py:score", function: exact_match}', r"rewards\.parts\.0: expected exactly one of"),
        ("{name: own}", r"rewards\.parts\.0: expected exactly one of"),
        ("{name: own, function: exact_match, sha256: " + "a" * 64 + "}", r".*sha256: only allowed together with file"),
    ],
)
def test_a_file_that_cannot_be_named_is_an_error_of_the_spec(tmp_path, part, message):
    path = write(tmp_path, 1.0, "name: own\n" + BASE.replace('{name: own, file: "reward.py:score"}', part))
    with pytest.raises(ConfigurationError, match=rf"spec\.yaml: {message}"):
        load_spec(path)


def test_a_digest_given_in_the_spec_is_enforced(tmp_path):
    part = '{name: own, file: "reward.py:score", sha256: ' + "a" * 64 + "}"
    spec = load_spec(write(tmp_path, 1.0, "name: own\n" + BASE.replace('{name: own, file: "reward.py:score"}', part)))
    with pytest.raises(ConfigurationError, match="has changed"):
        settle_code(spec, tmp_path / "run", NoStore())
