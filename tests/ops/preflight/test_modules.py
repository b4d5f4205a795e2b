"""A module that a spec names is refused if actors would not find it, and remarked if they find it only by the folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ADVANTAGE = "import numpy as np\ndef method(batch, options):\n    return np.zeros(len(batch.rewards))\n"
REWARD = "def method(prompt, response):\n    return 1.0\n"
TOOL = "def method(text: str = '') -> str:\n    return text\n"
SOURCE = "def method(split):\n    for number in range(12):\n        yield {'prompt': f'q{number}', 'answer': '1'}\n"
ROOT = Path(__file__).parents[3]


def spec_with(kind: str, name: str) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "name": "checked",
        "data": {"sources": [{"kind": "jsonl", "path": "rows.jsonl"}], "prompts_per_iteration": 4, "held_out": 4,
                 "probe": 2, "logical_shards": 2},
        "rollout": {"engine": {"kind": "virtual"}},
        "trainer": {"engine": {"kind": "virtual"}},
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
    }  # fmt: skip
    if kind == "advantage":
        tree["algorithm"] = {"advantage": {"kind": "custom", "function": name}}
    elif kind == "reward":
        tree["rewards"] = {"parts": [{"name": "own", "function": name}]}
    elif kind == "tool":
        tree["rollout"]["tools"] = {"functions": [{"name": "own", "function": name}]}
    else:
        tree["data"]["sources"] = [{"kind": "function", "function": name}]
    return tree


def checked(folder: Path, path: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m yatt check` in a folder, with PYTHONPATH."""
    entries = [str(ROOT), *filter(None, [path])]
    return subprocess.run(
        [sys.executable, *options, "-m", "yatt", "check", "spec.yaml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entries), "YATT_HOME": str(folder / "runs")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.verify
@pytest.mark.parametrize(
    ("kind", "code"), [("advantage", ADVANTAGE), ("reward", REWARD), ("tool", TOOL), ("source", SOURCE)]
)
def test_modules_of_the_current_folder_are_remarked_and_those_on_a_relative_path_are_sound(
    tmp_path: Path, kind: str, code: str
) -> None:
    rows = [{"prompt": f"question {number}", "answer": str(number)} for number in range(30)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "here_only.py").write_text(code)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "on_the_path.py").write_text(code)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec_with(kind, "here_only:method")))
    found = checked(tmp_path, "")
    assert found.returncode == 0, found.stderr
    assert f"module 'here_only' is found because the command runs in {tmp_path}; " in found.stderr
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec_with(kind, "on_the_path:method")))
    found = checked(tmp_path, "mine", "-P")
    assert found.returncode == 0, found.stderr
    assert "is found because" not in found.stderr


def test_a_module_that_only_this_process_finds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ops.preflight.modules import check_modules
    from yatt_core.errors import ConfigurationError
    from yatt_core.spec import RunSpec

    (tmp_path / "only_in_this_process.py").write_text(ADVANTAGE + REWARD.replace("method", "score"))
    monkeypatch.syspath_prepend(tmp_path)
    tree = spec_with("advantage", "only_in_this_process:method")
    with pytest.raises(
        ConfigurationError, match=r"algorithm\.advantage\.function: module 'only_in_this_process' is not found"
    ):
        check_modules(RunSpec.model_validate(tree))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert check_modules(RunSpec.model_validate(tree)) == []
    other = tmp_path / "other"
    other.mkdir()
    (other / "only_in_this_process.py").write_text(ADVANTAGE)
    monkeypatch.setenv("PYTHONPATH", f"{other}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(
        ConfigurationError, match=rf"is {other}/only_in_this_process\.py for actors, but {tmp_path}/only"
    ):
        check_modules(RunSpec.model_validate(tree))
