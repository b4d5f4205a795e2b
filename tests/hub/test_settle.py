"""What a spec names on the Hub is resolved once, fetched whole or not at all, and compared by digest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.hub.server import Hub, files_of, serving
from tests.models.folders import make_folder
from tests.spec.trees import spec
from yatt_core.datasets.data_files import held_out_files, training_files
from yatt_core.datasets.sources import all_tasks
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError, StorageFullError
from yatt_core.evaluation.suites import parse_suite
from yatt_core.hub.files import HubFile, splits_of
from yatt_core.hub.settle import Settling, repositories, settled
from yatt_core.models.model_folder import check_model_unchanged, count_parameters, describe_model
from yatt_core.models.offline import OFFLINE, SAID
from yatt_core.repository_names import is_repository
from yatt_core.spec import RunSpec, override_spec
from yatt_core.spec.sections.data import HubSource
from yatt_core.spec.sections.model import HubModel

MODEL = "org/tiny"
ROWS = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(6)]


def lines(rows: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = make_folder(tmp_path_factory.mktemp("model"))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages }}")
    return {**files_of(folder), "pytorch_model.bin": b"a pickle", "README.md": b"# tiny", "onnx/model.onnx": b"other"}


class Place(NamedTuple):
    hub: Hub
    home: Path

    def settle(self, given: RunSpec, **how: Any) -> RunSpec:
        return settled(given, Settling(self.home, **how))

    def refusal(self, given: RunSpec, **how: Any) -> str:
        with pytest.raises(ConfigurationError) as raised:
            self.settle(given, **how)
        return str(raised.value)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_files: dict[str, bytes]) -> Iterator[Place]:
    for name in (OFFLINE, SAID, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    with serving(Hub()) as hub:
        hub.add("model", MODEL, model_files)
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield Place(hub, tmp_path / "home")


def of_model(**changes: Any) -> RunSpec:
    return spec(model={"kind": "hub", "repo": MODEL, **changes})


def of_data(**changes: Any) -> RunSpec:
    return spec(data={"sources": [{"kind": "hub", "repo": "org/rows", **changes}]})


def model_of(given: RunSpec) -> HubModel:
    assert isinstance(given.model, HubModel)
    return given.model


def source_of(given: RunSpec) -> HubSource:
    source = given.data.sources[0]
    assert isinstance(source, HubSource)
    return source


def test_a_model_is_fetched_by_commit_with_the_files_that_it_needs(place: Place, model_files: dict[str, bytes]) -> None:
    found = model_of(place.settle(of_model()))
    assert found.pinned is not None
    assert found.pinned.commit == place.hub.repositories["model", MODEL].branches["main"]
    expected = {
        name: data
        for name, data in model_files.items()
        if name not in ("pytorch_model.bin", "README.md", "onnx/model.onnx")
    }
    assert files_of(Path(found.path)) == expected
    assert "additional_chat_templates/tool_use.jinja" in expected


def test_a_spec_that_is_settled_asks_nothing_even_with_the_server_gone(place: Place) -> None:
    done = place.settle(of_model())
    place.hub.asked.clear()
    assert place.settle(done) is done
    assert not place.hub.asked


def test_a_branch_that_moves_changes_no_spec_that_is_settled_and_is_seen_by_a_new_one(
    place: Place, model_files: dict[str, bytes]
) -> None:
    done = place.settle(of_model())
    newer = place.hub.repositories["model", MODEL].commit({**model_files, "generation_config.json": b"{}"})
    assert place.settle(done) is done
    again = model_of(place.settle(of_model()))
    assert again.pinned is not None
    assert again.pinned.commit == newer
    assert again.path != model_of(done).path
    assert (Path(model_of(done).path) / "config.json").read_bytes() == model_files["config.json"]


def test_files_that_are_gone_are_fetched_again_by_the_same_commit_into_the_same_folder(
    place: Place, model_files: dict[str, bytes]
) -> None:
    done = place.settle(of_model())
    place.hub.repositories["model", MODEL].commit({**model_files, "config.json": b"{}"})
    shutil.rmtree(Path(model_of(done).path).parent)
    assert place.settle(done) == done
    assert (Path(model_of(done).path) / "config.json").read_bytes() == model_files["config.json"]


def test_another_revision_in_a_settled_spec_is_resolved_anew(place: Place, model_files: dict[str, bytes]) -> None:
    done = place.settle(of_model())
    tagged = place.hub.repositories["model", MODEL].commit({**model_files, "generation_config.json": b"{}"}, "v2")
    changed = override_spec(done, ["model.revision=v2"], "test")
    assert model_of(changed).pinned is None
    pinned = model_of(place.settle(changed)).pinned
    assert pinned is not None
    assert pinned.commit == tagged


def test_a_fetch_that_failed_goes_on_with_the_files_that_it_had_completed(place: Place) -> None:
    place.hub.damaged.add("model.safetensors")
    with pytest.raises(DataError):
        place.settle(of_model())
    assert not any(path.name == "files" and path.parent.name[0] != "." for path in place.home.rglob("files"))
    before = place.hub.fetched("config.json")
    left = next(place.home.rglob("incoming")) / ".cache" / "dead.incomplete"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"of a process that was killed")
    place.hub.damaged.clear()
    found = model_of(place.settle(of_model()))
    assert place.hub.fetched("config.json") == before == 1
    assert not list(place.home.rglob("*.incomplete"))
    assert (Path(found.path) / "model.safetensors").exists()


def test_two_that_want_the_same_files_fetch_them_once(place: Place) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: place.settle(of_model()), range(2))
    assert first == second
    assert place.hub.fetched("model.safetensors") == 1


@pytest.mark.parametrize("fault", ["cut", "damaged"])
def test_a_file_that_is_not_what_the_list_says_never_becomes_a_model(place: Place, fault: str) -> None:
    getattr(place.hub, fault).add("model.safetensors")
    with pytest.raises(DataError, match=r"model\.safetensors is not what its list of files says"):
        place.settle(of_model())
    getattr(place.hub, fault).clear()
    assert (Path(model_of(place.settle(of_model())).path) / "model.safetensors").exists()


def test_a_folder_that_was_changed_is_refused(place: Place) -> None:
    done = place.settle(of_model())
    path = Path(model_of(done).path) / "config.json"
    path.chmod(0o644)
    path.write_bytes(b"{}")
    assert "delete" in place.refusal(done)


def test_each_refusal_says_why_and_whose_token_was_sent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = place.hub
    assert "model org/none" in place.refusal(of_model(repo="org/none"))
    assert "no token was sent" in place.refusal(of_model(repo="org/none"))
    assert "revision 'v9'" in place.refusal(of_model(revision="v9"))
    hub.repositories["model", MODEL].reader = "right"
    assert "is private (no token was sent)" in place.refusal(of_model())
    hub.repositories["model", MODEL].gated = True
    assert "is gated: ask for access" in place.refusal(of_model())
    monkeypatch.setenv("HF_TOKEN", "wrong")
    assert "the token of the environment variable HF_TOKEN was sent" in place.refusal(of_model())
    monkeypatch.setenv("MINE", "right")
    assert model_of(place.settle(of_model(token={"env": "MINE"}))).pinned is not None
    hub.expired.add("wrong")
    hub.repositories["model", MODEL].reader = None
    assert "is refused" in place.refusal(of_model(revision="main"))
    assert "model.token" in place.refusal(of_model(token={"env": "NOT_SET"}))
    assert "wrong" not in place.refusal(of_model())


def test_a_full_disk_is_seen_before_anything_is_fetched(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yatt_core.hub.cache.SPARE_BYTES", 1 << 62)
    with pytest.raises(StorageFullError, match=r"not enough disk space for model org/tiny"):
        place.settle(of_model())
    assert not place.hub.fetched("config.json")


def test_offline_takes_the_commit_that_was_fetched_last_and_says_what_is_not_here(
    place: Place, monkeypatch: pytest.MonkeyPatch, model_files: dict[str, bytes]
) -> None:
    first = place.settle(of_model())
    place.hub.repositories["model", MODEL].commit({**model_files, "generation_config.json": b"{}"})
    place.hub.asked.clear()
    monkeypatch.setenv(OFFLINE, "1")
    assert place.settle(of_model()) == first
    assert "never been fetched here" in place.refusal(of_model(revision="v2"))
    assert not place.hub.asked


def test_a_server_that_is_gone_is_said_with_the_commit_that_is_here(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = model_of(place.settle(of_model()))
    assert first.pinned is not None
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InfrastructureError, match=first.pinned.commit):
        place.settle(of_model())
    assert model_of(place.settle(of_model(revision=first.pinned.commit))).path == first.path


def test_without_weights_a_model_has_its_sizes_and_takes_no_space(place: Place, model_files: dict[str, bytes]) -> None:
    weights = len(model_files["model.safetensors"])
    sketch = Path(model_of(place.settle(of_model(), weights=False)).path)
    whole = Path(model_of(place.settle(of_model())).path)
    assert count_parameters(sketch) == count_parameters(whole) > 0
    assert (sketch / "model.safetensors").stat().st_size == weights
    assert (sketch / "model.safetensors").stat().st_blocks * 512 < weights
    assert place.settle(of_model(), weights=False) == place.settle(of_model())


def test_what_was_checked_without_weights_is_fetched_whole_at_the_same_commit(
    place: Place, model_files: dict[str, bytes]
) -> None:
    checked = place.settle(of_model(), weights=False)
    place.hub.repositories["model", MODEL].commit({**model_files, "config.json": b"{}"})
    whole = model_of(place.settle(checked))
    assert whole.pinned is not None
    assert model_of(checked).pinned is not None
    assert whole.pinned.commit == model_of(checked).pinned.commit
    assert (Path(whole.path) / "model.safetensors").read_bytes() == model_files["model.safetensors"]
    assert place.settle(checked, weights=False) is checked


def test_a_model_of_pickles_is_refused(place: Place, model_files: dict[str, bytes]) -> None:
    only = {name: data for name, data in model_files.items() if name != "model.safetensors"}
    place.hub.add("model", "org/pickled", only)
    assert "only pickles (pytorch_model.bin)" in place.refusal(of_model(repo="org/pickled"))


def test_files_go_into_this_home_whatever_a_spec_of_another_one_says(place: Place, tmp_path: Path) -> None:
    elsewhere = settled(of_model(), Settling(tmp_path / "other"))
    assert model_of(place.settle(elsewhere)).path.startswith(str(place.home))
    shutil.rmtree(tmp_path / "other")
    assert settled(elsewhere, Settling(place.home, fixed=True)) == elsewhere
    strange = override_spec(of_model(), [f"model.path={tmp_path / 'mine'}"], "test")
    with pytest.raises(ConfigurationError, match=r"is not a folder of org/tiny"):
        settled(strange, Settling(place.home, fixed=True))


def test_contents_are_compared_again_where_a_run_is_created(place: Place) -> None:
    done = place.settle(of_model())
    weights = Path(model_of(done).path) / "model.safetensors"
    weights.chmod(0o644)
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    assert place.settle(done) is done
    assert "sha256" in place.refusal(done, contents=True)


def test_who_may_not_fetch_is_told_how(place: Place) -> None:
    assert "`yatt fetch SPEC` on this machine fetches it" in place.refusal(of_model(), fetches=False)
    done = place.settle(of_model())
    assert place.settle(done, fetches=False) is done


def test_names_that_the_hub_does_not_allow_are_none(place: Place) -> None:
    for name in ("org/a--b", "org/a..b", "org/tiny.git", "org/a/b", f"org/{'a' * 97}", "./org/tiny"):
        assert not is_repository(name)
    assert is_repository(f"{'o' * 96}/{'a' * 96}")


def test_a_list_that_names_files_outside_of_the_repository_is_refused(place: Place) -> None:
    place.hub.add("dataset", "org/rows", {"../../train.jsonl": lines(ROWS)})
    assert "outside of its repository" in place.refusal(of_data())


@pytest.mark.parametrize("given", ["{train: 5}", "[{split: train}]", "[[a]]", "{train: [1]}", f"'{'a' * 300}'"])
def test_a_card_of_another_form_is_refused(place: Place, given: str) -> None:
    card = f"---\nconfigs:\n- config_name: default\n  data_files: {given}\n---\n"
    place.hub.add("dataset", "org/rows", {"README.md": card.encode(), "train.jsonl": lines(ROWS)})
    assert "data_files: expected patterns" in place.refusal(of_data())


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("data/*.jsonl", ["data/a.jsonl"]),
        ("**/*.jsonl", ["a.jsonl", "data/a.jsonl", "data/more/b.jsonl"]),
        ("data/**", ["data/a.jsonl", "data/more/b.jsonl"]),
        ("./a.jsonl", ["a.jsonl"]),
        ("data/[z-a].jsonl", []),
        ("**/" * 60 + "x", []),
    ],
)
def test_patterns_of_a_card(pattern: str, names: list[str]) -> None:
    files = [HubFile(name, 1, "git:0") for name in ("a.jsonl", "data/a.jsonl", "data/more/b.jsonl")]
    card = f"---\nconfigs:\n- config_name: default\n  data_files: '{pattern}'\n---\n"
    assert sorted(splits_of(files, card, "org/rows", None)["train"]) == names


def test_splits_are_named_within_their_configuration(place: Place) -> None:
    files = {"dev-clean/train-00000-of-00001.jsonl": lines(ROWS[:4]), "dev-clean/part.jsonl": lines(ROWS[4:])}
    place.hub.add("dataset", "org/rows", files)
    found = source_of(place.settle(of_data(subset="dev-clean")))
    assert [file.name for file in training_files(found)] == ["dev-clean/train-00000-of-00001.jsonl"]


CARD = """---
license: mit
configs:
- config_name: main
  default: true
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: [main/test-*]
- config_name: socratic
  data_dir: socratic
- config_name: tabs
  data_files: tabs/*.csv
  sep: "\\t"
---
# Rows
"""


def test_a_dataset_has_the_files_that_its_card_names(place: Place) -> None:
    files = {
        "README.md": CARD.encode(),
        "main/train-00000-of-00002.jsonl": lines(ROWS[:2]),
        "main/train-00001-of-00002.jsonl": lines(ROWS[2:4]),
        "main/test-00000-of-00001.jsonl": lines(ROWS[4:]),
        "socratic/train.jsonl": lines(ROWS[:1]),
        "tabs/a.csv": b"prompt",
    }
    place.hub.add("dataset", "org/rows", files)
    found = source_of(place.settle(of_data(held_out_split="test")))
    assert [file.name for file in training_files(found)] == sorted(
        name for name in files if name.startswith("main/train")
    )
    assert [file.name for file in held_out_files(found)] == ["main/test-00000-of-00001.jsonl"]
    assert training_files(found)[0].path.read_bytes() == lines(ROWS[:2])
    assert not place.hub.fetched("socratic/train.jsonl")
    other = source_of(place.settle(of_data(subset="socratic")))
    assert [file.name for file in training_files(other)] == ["socratic/train.jsonl"]
    assert "it has main, socratic, tabs" in place.refusal(of_data(subset="none"))
    assert "no split 'validation'; it has test, train" in place.refusal(of_data(split="validation"))
    assert "changes how its files are read (sep)" in place.refusal(of_data(subset="tabs"))


def test_a_dataset_without_a_card_is_read_by_the_names_of_its_files(place: Place) -> None:
    files = {
        "data/train-00000-of-00001.jsonl": lines(ROWS[:4]),
        "data/test-00000-of-00001.jsonl": lines(ROWS[4:]),
        "rows.py": b"print()",
    }
    place.hub.add("dataset", "org/rows", files)
    found = source_of(place.settle(of_data()))
    assert [file.name for file in training_files(found)] == ["data/train-00000-of-00001.jsonl"]
    place.hub.add("dataset", "org/rows2", {"rows2.py": b"print()"})
    assert "its loading script rows2.py is not run" in place.refusal(of_data(repo="org/rows2"))


def test_each_key_of_a_spec_that_names_a_repository_is_found(place: Place) -> None:
    teacher = {"kind": "hub", "repo": "org/teacher"}
    given = spec(
        model={"kind": "hub", "repo": MODEL},
        algorithm={"distillation": {"teachers": [{"model": teacher}]}},
        data={"sources": [{"kind": "hub", "repo": "org/rows"}]},
    )
    assert [".".join(map(str, keys)) for keys, _ in repositories(given)] == [
        "model",
        "data.sources.0",
        "algorithm.distillation.teachers.0.model",
    ]
    assert place.refusal(given).startswith("data.sources.0: dataset org/rows")


def test_a_models_weights_are_fetched_for_a_workload_whose_inputs_are_built_from_it(
    place: Place, model_files: dict[str, bytes]
) -> None:
    """By checks too, which build the inputs; not by plans."""
    models = {"judge": {"kind": "hub", "repo": MODEL}}
    workload = {"kind": "tests.workloads.counting:Counting", "models": models}
    given = RunSpec.model_validate({"name": "judged", "workload": workload})
    assert [keys for keys, _ in repositories(given)] == [("workload", "models", "judge")]
    planned = place.settle(given, weights=False, data=False).workload.models["judge"]
    sketch = (Path(planned.path) / "model.safetensors").read_bytes()
    assert len(sketch) == len(model_files["model.safetensors"])
    assert sketch != model_files["model.safetensors"], "its header is there, its weights are not"
    checked = place.settle(given, weights=False)
    whole = Path(checked.workload.models["judge"].path)
    assert (whole / "model.safetensors").read_bytes() == model_files["model.safetensors"]
    assert place.settle(checked, weights=False) is checked


def test_the_set_of_a_suite_can_be_a_dataset_of_the_hub(place: Place) -> None:
    place.hub.add("dataset", "org/rows", {"test.jsonl": lines(ROWS)})
    source = {"kind": "hub", "repo": "org/rows", "split": "test"}
    suite = settled(
        parse_suite({"name": "sums", "sets": [{"name": "sums", "source": source}]}, "test"), Settling(place.home)
    )
    assert [task.text for task in all_tasks(suite.sets[0].source, 0, None)] == [row["prompt"] for row in ROWS]


def test_a_named_chat_template_that_changes_is_seen(place: Place) -> None:
    folder = Path(model_of(place.settle(of_model())).path)
    facts = describe_model(folder).model_files
    assert "additional_chat_templates/tool_use.jinja" in facts
    template = folder / "additional_chat_templates" / "tool_use.jinja"
    check_model_unchanged(folder, facts)
    before = {name: value for name, value in facts.items() if not name.startswith("additional_chat_templates")}
    check_model_unchanged(folder, before)  # of a build that did not record them
    with pytest.raises(ConfigurationError, match=r"tool_use\.jinja"):
        check_model_unchanged(folder, {**before, "additional_chat_templates/": "0 files"})
    template.chmod(0o644)
    template.write_text("another")
    with pytest.raises(
        ConfigurationError, match=r"has changed since the run began: additional_chat_templates/tool_use\.jinja"
    ):
        check_model_unchanged(folder, facts)
