"""Bad input of every kind: one clear message, the right exit code, no traceback, and no half-created files."""

from __future__ import annotations

import re
import sqlite3
import sys
from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.run.home import Home
from ops.preflight import run
from ops.preflight.run import check_before_start, checkpoint_bytes, parameters
from tests.engines.train.support import make_model_folder
from tests.ops.conftest import Answer, Yatt
from tests.ops.group.group_tools import ANY
from tests.ops.seeding import seed_run, toy_spec
from tests.read_only import read_only
from yatt_core.errors import ConfigurationError
from yatt_core.models.tokenizer import save_tokenizer, train_tokenizer
from yatt_core.spec import parse_spec
from yatt_core.spec.reading.documents import yaml_text
from yatt_core.spec.sections.model import TokenizerSpec


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(yaml_text(toy_spec().model_dump(mode="json")))
    return path


def refused(answer: Answer, code: int, says: str) -> None:
    assert answer.code == code
    assert answer.out == ""
    assert answer.err.startswith("error: ")
    assert says in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("rollout.temprature=0.5", "rollout.temprature: unknown key; did you mean 'temperature'?"),
        ("algorithm.preset=grpo", "did you mean 'gspo'? known presets: dapo, dr_grpo, "),
        (
            "algorithm.importance_correction={kind: mask, low: 5.1}",
            "importance_correction: high: 5.0 is less than low 5.1",
        ),
        ("iterations=many", "iterations: Input should be a valid integer"),
        ("iterations=-1", "iterations: "),
        ("iterations", "--set iterations: expected key=value"),
        ("=3", "--set =3: "),
        ("seed.deep=3", "--set seed.deep=3: seed "),
        ("rewards.accuracy_part=nothing", "rewards.accuracy_part: "),
        ("rewards.parts.0.function=virtual_scor", "did you mean 'virtual_score'?"),
        ("data.sources.0.task=spell_backwards", "did you mean 'spell_backward'?"),
        ("controllers.count=1000000000", "controllers.count: Input should be less than or equal to 4096"),
        ("dynamic_sampling={kind: valid_group, overdraw: 1.0e+308}", "dynamic_sampling.overdraw: Input should be less"),
        (
            "dynamic_sampling={kind: valid_group, ratio_cap: 1.0e+308}",
            "dynamic_sampling.ratio_cap: Input should be less",
        ),
        ("storage.url=gs://bucket/prefix", "storage.url: 'gs://bucket/prefix' "),
        ("storage.url=s3://me:hidden@bucket", "storage.url: "),
        ("storage.url=s3://UPPER/x", "storage.url: 'UPPER' "),
        ("storage.url=s3://bucket/a/../b", "storage.url: 'a/../b' "),
        ("storage.uri=s3://bucket/a", "storage.uri: unknown key; did you mean 'url'?"),
        ("sft={demonstrations: 100000}", "sft.demonstrations: 100000 of 100000 "),
    ],
)
def test_an_invalid_spec(yatt: Yatt, home: Home, spec_file: Path, override: str, says: str) -> None:
    refused(yatt("train", str(spec_file), "--set", override), 2, says)
    assert not home.folder.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [("name: [unclosed", "YAML"), ("- a list", "a list"), ("name: toy", "data.sources: expected at least 1")],
)
def test_a_file_that_is_not_a_spec(yatt: Yatt, home: Home, tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    refused(yatt("train", str(path)), 2, says)
    assert not home.folder.exists()


def test_a_missing_spec_file(yatt: Yatt, tmp_path: Path) -> None:
    refused(yatt("train", str(tmp_path / "none.yaml")), 2, "none.yaml: cannot be read: No such file or directory")


def real_spec(model: dict[str, object]) -> dict[str, object]:
    tree = toy_spec().model_dump(mode="json")
    return tree | {"model": model, "rollout": {}, "trainer": {}}


def test_a_missing_model_folder(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    path = tmp_path / "real.yaml"
    path.write_text(yaml_text(real_spec({"kind": "folder", "path": "no-such-model"})))
    refused(yatt("train", str(path)), 2, f"model.path: {tmp_path / 'no-such-model'} ")
    assert not home.folder.exists()


def given_folder(folder: Path) -> Path:
    """Writes a model with its tokenizer."""
    make_model_folder(folder)
    save_tokenizer(train_tokenizer(TokenizerSpec(), ["spell it backward"], ["abc"]), folder, 64)
    return folder


def test_adapter_targets_that_the_model_lacks(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    folder = given_folder(tmp_path / "model")
    path = tmp_path / "real.yaml"
    lora = {"lora": {"rank": 2, "targets": ["q_proj", "v_prj"]}}
    path.write_text(yaml_text(real_spec({"kind": "folder", "path": str(folder)}) | {"trainer": lora}))
    says = "trainer.lora.targets: .* has no matrix 'v_prj'; did you mean 'v_proj'; it has down_proj, gate_proj, k_proj"
    answer = yatt("train", str(path))
    assert answer.code == 2 and re.search(says, answer.err.replace("\n", " ")), answer.err
    assert not home.folder.exists()


def test_a_damaged_file_of_another_model_is_reported_with_its_key(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    damaged = given_folder(tmp_path / "model")
    path = tmp_path / "real.yaml"
    (damaged / "model.safetensors").write_bytes(b"12345678{")
    tree = real_spec({"kind": "from_config"})
    tree["algorithm"] = {
        "distillation": {"teachers": [{"model": {"kind": "folder", "path": str(damaged)}}]},
    }
    path.write_text(yaml_text(tree))
    refused(yatt("train", str(path)), 2, f"algorithm.distillation.teachers.0.model.path: {damaged}/model.safetensors ")
    assert not home.folder.exists()


def test_a_codec_that_cannot_be_opened(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    tree = real_spec({"kind": "from_config", "max_positions": 512})
    tools = {"functions": [{"name": "calculator", "function": "calculator"}], "max_result_tokens": 1}
    path = tmp_path / "real.yaml"
    path.write_text(yaml_text(tree | {"rollout": {"tools": tools}}))
    refused(yatt("train", str(path)), 2, "rollout.tools.max_result_tokens: 1 ")
    assert not home.folder.exists()


def test_a_missing_data_file(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    tree = toy_spec().model_dump(mode="json")
    tree["data"]["sources"] = [{"kind": "jsonl", "path": "rows.jsonl"}]
    path = tmp_path / "rows.yaml"
    path.write_text(yaml_text(tree))
    refused(yatt("train", str(path)), 2, f"data.sources.0.path: {tmp_path / 'rows.jsonl'} cannot be read: No such file")
    assert not home.folder.exists()


def test_a_broken_row_is_reported_before_a_run_is_created(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "one", "answer": "1"}\n{"prompt": \n')
    tree = toy_spec().model_dump(mode="json")
    tree["data"]["sources"] = [{"kind": "jsonl", "path": "rows.jsonl"}]
    path = tmp_path / "rows.yaml"
    path.write_text(yaml_text(tree))
    refused(yatt("train", str(path)), 2, f"{tmp_path / 'rows.jsonl'}:2: is not a JSON object on one line")
    assert not home.folder.exists()


def test_a_disk_without_room_for_a_checkpoint(
    yatt: Yatt, home: Home, spec_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SPARE_BYTES", 1 << 60)
    answer = yatt("train", str(spec_file))
    refused(answer, 1, "needs about 1048576.0 TiB")
    assert not home.folder.exists()


def test_the_estimate_of_a_checkpoint_counts_weights_moments_and_reference(tmp_path: Path) -> None:
    spec = parse_spec(real_spec({"kind": "from_config", "hidden_size": 128, "layers": 2}), "test")
    # A layer of width 128 with 4 heads: 4 x 128 x 128 of attention, two norms of a head, 3 x 128 x 344 of feed-forward, two
    # norms.
    layers = 2 * (4 * 128 * 128 + 2 * 32 + 3 * 128 * 344 + 2 * 128)
    assert parameters(spec) == layers + 4096 * 128 + 128
    assert checkpoint_bytes(spec) == 12 * parameters(spec)
    pulled = parse_spec(spec.model_dump() | {"algorithm": {"kl": {}}}, "test")
    assert checkpoint_bytes(pulled) == 16 * parameters(spec)
    valued = parse_spec(
        spec.model_dump() | {"algorithm": {"advantage": {"kind": "gae"}, "critic": {}, "kl": {}}}, "test"
    )
    assert checkpoint_bytes(valued) == 28 * parameters(spec)
    assert checkpoint_bytes(toy_spec()) == 0
    with pytest.raises(ConfigurationError, match=r"model\.path: /nowhere "):
        check_before_start(tmp_path, parse_spec(real_spec({"kind": "folder", "path": "/nowhere"}), "test"))


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=str(tmp_path / "file")):
        check_before_start(tmp_path / "file", toy_spec())


def test_a_home_in_which_no_folder_can_be_created(yatt: Yatt, spec_file: Path) -> None:
    """According to its permissions, /proc is writable for root, but no folder can be created in it."""
    for words in (["train", str(spec_file)], ["up", "--detach"], ["dashboard", "--port", "0"]):
        answer = yatt(*words, "--home", "/proc/nope")
        assert answer.code == 2, words
        assert answer.err.startswith("error: /proc/nope: ")
        assert "; choose another with --home or $YATT_HOME" in answer.err
    told = yatt("doctor", "--home", "/proc/nope").out
    assert "fail home" in told and "/proc/nope: " in told


def test_a_read_only_home(yatt: Yatt, home: Home, spec_file: Path) -> None:
    with read_only(home.folder.parent):
        for words in (["train", str(spec_file)], ["dashboard", "--port", "0"]):
            refused(yatt(*words), 2, f"{home.folder.parent} is not writable; choose another folder with --home")
        refused(yatt("token", "create", "alice"), 2, "cannot be written: Permission denied")
    run = seed_run(home)
    with read_only(home.folder):
        for words in (["resume", run], ["rollback", run, "--to", "1"], ["dashboard", "--port", "0"], ["runs"]):
            refused(yatt(*words), 2, f"ledger.db: {home.folder} is not writable")
    with read_only(home.folder / "ledger.db"):
        refused(yatt("rollback", run, "--to", "1"), 2, f"{home.folder / 'ledger.db'} is not writable")


@pytest.mark.parametrize(
    "words",
    [
        *(["show", "nobody"], ["logs", "nobody"], ["stop", "nobody"], ["resume", "nobody"], ["evaluate", "nobody"]),
        ["rollouts", "nobody", "--iteration", "1"],
    ],
)
def test_an_unknown_run(yatt: Yatt, home: Home, words: list[str]) -> None:
    refused(yatt(*words), 2, "no runs here; start one with `yatt train SPEC`")
    seed_run(home)
    refused(yatt(*words), 2, "there is no run 'nobody' in this ledger")


def test_a_missing_ledger_named_by_the_environment(
    yatt: Yatt, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed_run(home)
    monkeypatch.setenv("YATT_LEDGER", f"sqlite:///{tmp_path / 'x.db'}")
    answer = yatt("runs")
    refused(
        answer,
        2,
        f"YATT_LEDGER: {tmp_path / 'x.db'}: no runs here; start one with `yatt train SPEC`, or point YATT_LEDGER ",
    )
    assert "--home" not in answer.err


@pytest.mark.parametrize(
    ("words", "where"),
    [
        *(
            (["deploy", "x.yaml", "--manual", option, ""], f"after '{option}'")
            for option in ("--name", "--for", "--home")
        ),
        (["deploy", "x.yaml", "--interval", "1h", "--timezone", ""], "after '--timezone'"),
        (["deploy", "--run", "", "--manual"], "after '--run'"),
        (["deploy", "x.yaml", "--manual", "--name="], "'--name='"),
        (["show", ""], "after 'show'"),
    ],
)
def test_an_empty_argument(yatt: Yatt, home: Home, words: list[str], where: str) -> None:
    """For example from an unset shell variable; the name of the only run begins with the empty string."""
    seed_run(home)
    refused(yatt(*words), 2, f"error: {where}: ")


@pytest.mark.parametrize("value", ["x" * 10_000, "x y " * 2_500])
@pytest.mark.parametrize("words", [["show"], ["show", "toy-1", "--output"], ["toy-1"]])
def test_an_invalid_argument_is_not_repeated_in_full(yatt: Yatt, home: Home, words: list[str], value: str) -> None:
    seed_run(home)
    answer = yatt(*words, value)
    refused(answer, 2, "")
    assert len(answer.err) < 1_500


def test_an_invalid_choice_names_the_valid_ones(yatt: Yatt) -> None:
    answer = yatt("promote", "x", "--to", "king", "--why", "y")
    refused(answer, 2, "error: Invalid value for '--to': 'king' is not one of 'candidate', 'champion', 'rollback'")


def test_an_empty_ledger_has_no_latest_run(yatt: Yatt, home: Home) -> None:
    from db.ledger import Ledger

    home.folder.mkdir()
    Ledger.open(home.ledger).close()
    refused(yatt("show", "latest"), 2, "there are no runs in this ledger yet")


def test_a_ledger_from_a_newer_version(yatt: Yatt, home: Home, spec_file: Path) -> None:
    seed_run(home)
    with sqlite3.connect(home.folder / "ledger.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    for words in (["runs"], ["show", "toy-1"], ["resume", "toy-1"]):
        refused(yatt(*words), 2, "9999")
    refused(yatt("train", str(spec_file)), 2, "a newer version wrote it; use that one")


def test_a_file_that_is_not_a_ledger(yatt: Yatt, home: Home) -> None:
    home.folder.mkdir()
    (home.folder / "ledger.db").write_text("this is no database" * 100)
    refused(yatt("runs"), 1, "file is not a database")


def test_a_database_of_an_unknown_kind_and_its_password(
    yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YATT_LEDGER", "mysql://user:hunter2@host/db")
    answer = yatt("runs")
    refused(answer, 2, "sqlite and postgresql, not mysql")
    assert "hunter2" not in answer.err


def test_an_address_with_an_invalid_port(yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YATT_LEDGER", "postgresql://user:hunter2@host:first/db")
    answer = yatt("runs")
    refused(answer, 2, "expected postgresql://")
    assert "hunter2" not in answer.err


@pytest.mark.parametrize(
    "given",
    [
        *("nonsense", "user:hunter2@host/db", "/data/ledger.db"),
        *("sqlite://", "sqlite://data/l.db", "sqlite:///ledger.db", "sqlite:///:memory:"),
    ],
)
def test_an_invalid_address(
    yatt: Yatt, home: Home, spec_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("YATT_LEDGER", given)
    monkeypatch.chdir(tmp_path)
    for words in (["runs"], ["show", "latest"], ["train", str(spec_file)], ["up", "--detach", *ANY]):
        answer = yatt(*words)
        refused(answer, 2, "error: YATT_LEDGER: ")
        assert "sqlite:////folder/ledger.db" in answer.err and "hunter2" not in answer.err
    assert not list(tmp_path.rglob("*.db")) and not (tmp_path / given).is_file()


@pytest.mark.parametrize(
    ("prefect", "says"),
    [
        ("", "YATT_RAY_ADDRESS is set, so a Prefect server "),
        ("localhost:4200", "PREFECT_API_URL: 'localhost:4200' "),
    ],
)
def test_a_cluster_without_a_prefect_server_leaves_runs_unchanged(
    yatt: Yatt, home: Home, spec_file: Path, monkeypatch: pytest.MonkeyPatch, prefect: str, says: str
) -> None:
    monkeypatch.setenv("YATT_RAY_ADDRESS", "127.0.0.1:9")
    monkeypatch.setenv("PREFECT_API_URL", prefect)
    answer = yatt("train", str(spec_file))
    refused(answer, 2, says)
    assert "http://127.0.0.1:4200/api" in answer.err
    assert not (home.folder / "ledger.db").exists()
    run = seed_run(home)
    with Ledger.open(home.ledger) as ledger:
        before = ledger.runs.find(run), ledger.overview.line(run).term
        answer = yatt("resume", run)
        assert answer.code == 2 and says in answer.err
        assert (ledger.runs.find(run), ledger.overview.line(run).term) == before


def test_postgresql_without_its_driver(yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YATT_LEDGER", "postgresql://user:hunter2@host/db")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    answer = yatt("runs")
    refused(answer, 2, "psycopg: pip install 'yatt[postgresql]'")
    assert "hunter2" not in answer.err


def test_a_run_with_another_driver(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, ends=False)
    answer = yatt("resume", run)
    assert (answer.code, answer.out) == (3, "")
    assert f"error: run {run} is held by driver of {run}" in answer.err
    assert "Traceback" not in answer.err
