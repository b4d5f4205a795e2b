"""Code in files beside the spec, of every kind: fixed by digest, executed from the run's copy once there is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from flows.run.callbacks import find_callbacks
from tests.engines.train.support import make_spec
from yatt_core.algorithms.advantages.base import RewardBatch
from yatt_core.algorithms.advantages.custom import CustomAdvantage
from yatt_core.algorithms.own import ADVANTAGES, place_of
from yatt_core.algorithms.tokens import PolicyTokens
from yatt_core.code_files import code_files, settle_code
from yatt_core.datasets.own_rows import open_sources, own_rows
from yatt_core.engines.train.base.own_methods import verify_methods
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.named_code import CODE, COPY
from yatt_core.prompts.tool_calls import ToolCall
from yatt_core.spec import RunSpec, load_spec, override_spec, parse_spec
from yatt_core.storage.run_store import NoStore
from yatt_core.tools.toolbox import Toolbox

ADVANTAGE = """\
import numpy as np
def own(batch, options):
    return np.full(len(batch.rewards), {value})
"""
LOSS = """\
from yatt_core.algorithms.tokens import TokenLosses
import torch
def own(tokens, options):
    return TokenLosses(tokens.log_ratio * {value}, torch.zeros_like(tokens.log_ratio))
"""
TOOL = "def own(text: str = '', mark: str = '') -> str:\n    return f'{{text}} {value}'\n"
SOURCE = """\
def own(split, count=12):
    for number in range(count):
        yield {{"prompt": f"q{{number}}", "answer": "{value}"}}
"""
CALLBACK = """\
class own:
    def __init__(self, **options):
        self.value = {value}
    def on_commit(self, commit):
        pass
"""
BATCH = RewardBatch(np.zeros(4), np.array([4]), np.ones(4, np.int64), 1e-6)


def by_advantage(spec: RunSpec, run: Path | None) -> float:
    verify_methods(spec, run)
    return float(spec.algorithm.advantage.advantages(BATCH)[0])


def by_loss(spec: RunSpec, run: Path | None) -> float:
    verify_methods(spec, run)
    ones = torch.ones(2, requires_grad=True)
    tokens = PolicyTokens(ones, ones, ones, ones, ones, ones, None)
    return float(spec.algorithm.loss.token_losses(tokens).values[0])


def by_tool(spec: RunSpec, run: Path | None) -> float:
    with closing(Toolbox(spec.rollout.tools, run)) as toolbox:
        ((_, answer),) = toolbox.answer({0: ToolCall("own", {"text": "said"})})
    return float(str(answer.text).split()[1])


def by_source(spec: RunSpec, run: Path | None) -> float:
    if run is not None:
        open_sources(spec.data, run)
    source: Any = spec.data.sources[0]
    return float(next(row["answer"] for _, row in own_rows(source, "train") if isinstance(row, dict)))


def by_callback(spec: RunSpec, run: Path | None) -> float:
    ((_, callback),) = find_callbacks(spec.callbacks, run)
    return float(callback.value)


FILE = {"file": "own.py:own"}
KINDS: dict[str, tuple[str, Callable[[RunSpec, Path | None], float], dict[str, Any]]] = {
    "advantage": (ADVANTAGE, by_advantage, {"algorithm": {"advantage": {"kind": "custom", **FILE}}}),
    "loss": (LOSS, by_loss, {"algorithm": {"loss": {"kind": "custom", **FILE}}}),
    "tool": (TOOL, by_tool, {"rollout": {"tools": {"functions": [{"name": "own", **FILE}]}}}),
    "source": (SOURCE, by_source, {"data": {"sources": [{"kind": "function", **FILE}]}}),
    "callback": (CALLBACK, by_callback, {"callbacks": [FILE]}),
}
KEYS = {
    "advantage": "algorithm.advantage.file",
    "loss": "algorithm.loss.file",
    "tool": "rollout.tools.functions.0.file",
    "source": "data.sources.0.file",
    "callback": "callbacks.0.file",
}


def write(folder: Path, kind: str, value: float, mark: str) -> Path:
    """Writes a file of the kind with a value, and a spec that names it; each test has contents of its own (`mark`)."""
    folder.mkdir(parents=True, exist_ok=True)
    code, _, part = KINDS[kind]
    (folder / "own.py").write_text(f"# {mark}\n" + code.format(value=value))
    tree = {
        "name": "own",
        "data": {"sources": [{"kind": "reasoning_gym", "task": "spell_backward", "size": 64}]},
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
        **part,
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(tree))
    return folder / "spec.yaml"


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_executes_its_copy_after_the_file_is_gone(tmp_path: Path, kind: str) -> None:
    use = KINDS[kind][1]
    spec = load_spec(write(tmp_path, kind, 3.0, "kept"))
    run = tmp_path / "run"
    (code,) = (each for each in code_files(spec) if "own.py" in str(each.path))
    assert code.sha256 is not None and code.path == tmp_path / "own.py"
    settle_code(spec, run, NoStore())
    (tmp_path / "own.py").unlink()
    again = parse_spec(json.loads(spec.model_dump_json()), "ledger")
    assert use(again, run) == 3.0
    fork = tmp_path / "fork"
    settle_code(again, fork, NoStore(), run)
    assert use(again, fork) == 3.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_refused_and_named_again_it_is_taken(tmp_path: Path, kind: str) -> None:
    use = KINDS[kind][1]
    spec = load_spec(write(tmp_path, kind, 4.0, "changed"))
    write(tmp_path, kind, 5.0, "changed")
    with pytest.raises(ConfigurationError, match=rf"file: {tmp_path}/own\.py has changed: its sha256 is .* spec says"):
        use(spec, None)
    with pytest.raises(ConfigurationError, match="has changed"):
        settle_code(spec, tmp_path / "run", NoStore())
    assert use(override_spec(spec, [f"{KEYS[kind]}={tmp_path}/own.py:own"], "run"), None) == 5.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_copy_is_never_executed(tmp_path: Path, kind: str) -> None:
    spec = load_spec(write(tmp_path, kind, 6.0, "copied"))
    run = tmp_path / "run"
    settle_code(spec, run, NoStore())
    (copy,) = (run / CODE).glob(f"*/{COPY}")
    copy.write_text("raise SystemExit('executed')\n")
    with pytest.raises(DataError, match=r"sha256 is .* expected .* restore the run's copy"):
        KINDS[kind][1](spec, run)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"file": "own.py"}, r"file: expected path/of/file\.py:function"),
        ({"file": "own.txt:own"}, r"file: expected path/of/file\.py:function"),
        ({"file": "absent.py:own"}, r"file: .*absent\.py does not exist"),
        ({"file": "own.py:own", "function": "pack.module:own"}, "expected exactly one of function"),
        ({}, "expected exactly one of function"),
    ],
)
def test_a_file_that_cannot_be_named_is_an_error_of_the_spec(
    tmp_path: Path, kind: str, given: dict[str, Any], says: str
) -> None:
    path = write(tmp_path, kind, 1.0, "named")
    text = json.dumps(yaml.safe_load(path.read_text())).replace(json.dumps(FILE)[1:-1], json.dumps(given)[1:-1])
    path.write_text(text.replace(", }", "}").replace("{, ", "{"))
    with pytest.raises(ConfigurationError, match=says):
        load_spec(path)


@pytest.mark.parametrize("kind", ["tool", "callback"])
def test_a_digest_that_nobody_checks_is_refused(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind, 1.0, "vouched")
    installed = json.dumps({"function": "tests.tools.functions:counting", "sha256": "a" * 64})
    text = json.dumps(yaml.safe_load(path.read_text()))
    path.write_text(text.replace(json.dumps(FILE)[1:-1], installed[1:-1]))
    with pytest.raises(ConfigurationError, match="sha256: only allowed together with file"):
        load_spec(path)


def test_a_method_in_a_file_is_named_by_its_key(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, "advantage", 1.0, "raises")).algorithm.advantage
    assert isinstance(spec, CustomAdvantage)
    assert place_of(spec, ADVANTAGES) == f"algorithm.advantage.file: {tmp_path}/own.py:own"
    installed = spec.model_copy(update={"file": None, "function": "pack.module:own"})
    assert place_of(installed, ADVANTAGES) == "algorithm.advantage.function: pack.module:own"


def test_specs_without_files_have_no_code() -> None:
    assert code_files(make_spec()) == []
