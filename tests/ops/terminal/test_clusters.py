"""The clusters of a command that drives several runs: warm ones of the service group, and none beside a cluster of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.run import lending
from flows.run.home import Home
from flows.run.shared_cluster import SharedCluster, taken_cluster
from ops.terminal.clusters import Clusters


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "runs").mkdir()
    return Home(tmp_path / "runs")


def test_a_place_with_all_gpus_borrows_a_warm_head(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with taken_cluster(home) as warm:

        @contextmanager
        def borrowed(home: Home) -> Iterator[SharedCluster]:
            yield warm

        monkeypatch.setattr(lending, "borrowed_for_command", borrowed)
        with Clusters(home) as clusters:
            assert clusters.at(0, None) is warm
            assert clusters.at(0, None) is warm
            assert clusters.at(0, "0") is not warm, "a warm head sees all GPUs"
        assert warm.folder.exists(), "its owner has it"


def test_who_lends_a_warm_head_hears_that_the_command_was_interrupted(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = list[str]()

    @contextmanager
    def borrowed(home: Home) -> Iterator[SharedCluster]:
        try:
            with taken_cluster(home) as warm:
                yield warm
        except BaseException as error:
            heard.append(type(error).__name__)
            raise

    monkeypatch.setattr(lending, "borrowed_for_command", borrowed)
    with pytest.raises(KeyboardInterrupt), Clusters(home) as clusters:
        clusters.at(0, None)
        raise KeyboardInterrupt
    assert heard == ["KeyboardInterrupt"]


def test_named_gpus_are_one_place_wherever_their_runs_are_driven(home: Home) -> None:
    with Clusters(home) as clusters:
        assert clusters.at(0, "0") is clusters.at(1, "0")
        assert clusters.at(0, "0") is not clusters.at(0, "1")
        assert clusters.at(0, None) is not clusters.at(1, None)


def test_there_are_none_beside_a_cluster_that_exists_already(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YATT_RAY_ADDRESS", "10.0.0.1:6379")
    with Clusters(home) as clusters:
        assert clusters.at(0, None) is None
    assert not home.clusters.exists()
