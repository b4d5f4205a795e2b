"""What the build before left is opened, verified, exported, compared and resumed by this one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.run.home import Home
from tests.ops.conftest import Yatt, home, trials, yatt  # noqa: F401
from tests.upgrades import QUEUED, RUN, SPEC, SWEEP, TRIALS, WEIGHTS, unpack


@pytest.fixture
def restored(yatt: Yatt, home: Home, tmp_path: Path) -> Home:  # noqa: F811
    """A home with everything that the backup has."""
    answer = yatt("restore", str(unpack(tmp_path)), "--home", str(home.folder))
    assert answer.code == 0, answer.err
    return home


def test_the_backup_is_sound(yatt: Yatt, tmp_path: Path) -> None:  # noqa: F811
    answer = yatt("backup", "verify", str(unpack(tmp_path)))
    assert answer.code == 0, answer.err


def test_its_runs_are_sound_and_shown_as_they_were(yatt: Yatt, restored: Home) -> None:  # noqa: F811
    for run in (RUN, *TRIALS):
        audited = yatt("audit", "verify", run, "-o", "json")
        assert audited.code == 0, audited.err
    shown = yatt("show", RUN, "-o", "json").document
    assert json.dumps(shown).count(WEIGHTS) > 0
    assert yatt("sweep", "show", SWEEP, "-o", "json").code == 0
    compared = yatt("compare", *TRIALS, "-o", "json")
    assert compared.code == 0, compared.err
    assert "learning_rate" in json.dumps(compared.document)
    queued = yatt("queue", "-o", "json").document
    assert QUEUED in json.dumps(queued)


def test_nothing_keeps_its_runs_from_being_resumed(yatt: Yatt, restored: Home) -> None:  # noqa: F811
    answer = yatt("upgrade", "--check", "-o", "json")
    assert answer.code == 0, answer.err
    assert not [change for change in answer.document["changes"] if change["blocks"]]


def test_its_checkpoint_is_exported(yatt: Yatt, restored: Home, tmp_path: Path) -> None:  # noqa: F811
    answer = yatt("export", RUN, "--to", str(tmp_path / "model"), "-o", "json")
    assert answer.code == 0, answer.err
    origin = json.loads((tmp_path / "model" / "yatt.json").read_text())
    assert origin["weights_digest"].startswith(WEIGHTS)


def test_a_spec_of_that_build_is_read(yatt: Yatt) -> None:  # noqa: F811
    answer = yatt("check", str(SPEC), "-o", "json")
    assert answer.code == 0, answer.err


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_its_run_is_resumed_to_its_end_and_still_sound(yatt: Yatt, restored: Home) -> None:  # noqa: F811
    answer = yatt("resume", RUN, "-o", "json")
    assert answer.code == 0, answer.err
    assert (answer.document["state"], answer.document["iteration"]) == ("completed", 4)
    assert yatt("audit", "verify", RUN).code == 0
