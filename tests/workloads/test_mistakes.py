"""What a class does wrong is told with its method, what was wrong and what would be right; nothing ends as if all were well."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import pytest

from ops.starter.workloads import _asked
from tests.workloads.erring import Erring
from tests.workloads.in_process import OwnRun
from tests.workloads.test_contract import SPEC, engine_of, learnt, spec_of, task_of
from tests.workloads.test_stages import newest_checkpoint
from yatt_core.algorithms.own import WORKLOADS, call
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.workload.state import NotFinite, require_finite
from yatt_core.errors import ConfigurationError, NumericError
from yatt_core.spec import RunSpec
from yatt_core.workloads.contract import State
from yatt_core.workloads.inputs import materialise_workload
from yatt_core.workloads.metric_names import LONGEST_NAME, require_metric_name

NAMED = r"Erring: update returned a metric called .*, which trackers refuse; expected letters and digits of any script"


def erring(mistake: str, *overrides: str) -> RunSpec:
    kind = "workload.kind=tests.workloads.erring:Erring"
    return spec_of(kind, f"workload.settings={{mistake: {mistake}}}", *overrides)


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("init exits", r"^workload.settings: .*Erring refuses them: .*erring.py:\d+: SystemExit: 0$"),
        ("build exits", r"Erring: build_inputs failed: .*erring.py:\d+: SystemExit: 0$"),
        ("update exits", r"Erring: update failed: .*erring.py:\d+: SystemExit: 0$"),
        ("pipe", r"Erring: build_inputs has made pipe, which is neither a file nor a folder; expected files alone"),
        ("file name", r"Erring: build_inputs has made 'a\\udcff.txt'; expected names of printable characters"),
        ("no folder", r"Erring: build_inputs has removed the folder that it got; expected files in it"),
        ("colours", r"^workload.settings: line 1\nline 2 \\x1b\[31mred\\x1b\[0m\\x9b2J$"),
        ("masked", r"Erring: draw: column 'y' is a masked array, whose mask would be lost; expected a numpy array"),
        ("long", r"Erring: draw: column 'y' is (float128|longdouble); expected .* at most 64 bits"),
        ("header", r"Erring: draw: a column is called '__metadata__'; expected a text"),
        ("unnamed", r"Erring: draw: a column is called ''; expected a text of at least one character"),
        ("surrogate", r"Erring: draw: a column is called '\\udcff'; expected a text"),
        ("text", r"Erring: update returned '0.5' as loss; expected a number"),
        ("at", NAMED),
        ("arrow", NAMED),
        ("no name", NAMED),
        ("two lines", NAMED),
        ("end of line", NAMED),
        ("upwards", NAMED),
        ("empty part", NAMED),
        ("long name", NAMED),
        ("dict", r"Erring: state returned dict; expected a State of the contract"),
        ("list", r"Erring: state returned State; expected a State .* whose weights, others and facts are mappings"),
        ("unnamed weight", r"Erring: state returned a tensor called ''; expected a text"),
        ("meta", r"Erring: 'g' of its state is a meta tensor, which has no numbers; expected one on a device"),
    ],
)
def test_a_mistake_is_told_with_its_place(mistake: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=text):
        learnt(erring(mistake), tmp_path, 1)


@pytest.mark.parametrize("mistake", ["weights nan", "weights inf"])
def test_weights_that_an_update_spoils_are_no_finished_update(mistake: str, tmp_path: Path) -> None:
    with pytest.raises(NumericError, match=r"Erring: update left values in the weights 'total' that are not finite"):
        learnt(erring(mistake), tmp_path, 1)


@pytest.mark.parametrize("mistake", ["mask", "undefined", "undefined later infinite"])
def test_what_was_not_finite_from_the_start_is_sound(mistake: str, tmp_path: Path) -> None:
    assert learnt(erring(mistake), tmp_path, 2).weights_digest()


def test_an_infinite_mask_may_not_become_undefined(tmp_path: Path) -> None:
    with pytest.raises(NumericError, match=r"update left values in the weights 'mask' that are not finite"):
        learnt(erring("mask later undefined"), tmp_path, 1)


def test_the_state_is_taken_once_for_an_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a copy of all weights."""
    engine = learnt(erring("none"), tmp_path, 1)
    prepared = engine.prepare(task_of("prepare", 2))
    assert prepared is not None
    taken = list[str]()
    state = Erring.state

    def counted(self: Erring) -> State:
        taken.append("state")
        return state(self)

    monkeypatch.setattr(Erring, "state", counted)
    engine.learn(task_of("learn", 2), prepared)
    assert taken == ["state"]


def test_a_rank_whose_rows_are_sound_hears_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would wait for them in the next exchange."""
    collective = Collective()
    monkeypatch.setattr(collective, "gathered", lambda own: [own, b"total"])
    with pytest.raises(NumericError, match=r"mine: update left values in the weights 'total'"):
        require_finite({}, NotFinite(), collective, "mine")


@pytest.mark.parametrize(
    "name",
    ["loss", "recall/at 10", "a.b-c_D", "hits.3/of 4", "größe/ошибка", "recall:10", "x" * LONGEST_NAME, "..a/b.."],
)
def test_names_that_all_trackers_take_are_taken(name: str) -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    require_metric_name(name, "mine: update")
    validation._validate_metric_name(f"evaluation/{name}")


def test_a_state_that_does_not_fit_is_told_as_a_matter_of_the_start(tmp_path: Path) -> None:
    first = OwnRun.of(tmp_path / "first", SPEC)
    first.drive(until=2)
    start = newest_checkpoint(first)
    spec = erring("none", f"workload.start.path={start}")
    materialise_workload(spec, tmp_path / "run")
    with pytest.raises(
        ConfigurationError, match=r"^workload.start.path: \S+: .*Erring cannot go on with it: .*another"
    ):
        engine_of(spec, tmp_path / "run").initialise()


def test_settings_that_a_model_of_the_class_refuses_are_told_by_their_keys(tmp_path: Path) -> None:
    kind = "workload.kind=tests.workloads.erring:Modelled"
    with pytest.raises(ConfigurationError, match=r"^workload.settings.width: Input should be greater than 0[^\n]*$"):
        materialise_workload(spec_of(kind, "workload.settings={width: 0}"), tmp_path)
    with pytest.raises(ConfigurationError, match=r"^workload.tunable.width: Input should be greater than 0"):
        materialise_workload(spec_of(kind, "workload.settings={}", "workload.tunable={width: 0}"), tmp_path)


@pytest.mark.parametrize(
    ("mistake", "text"), [("same model", "width"), ("missing", "height"), ("another type", "width")]
)
def test_other_values_that_a_model_refuses_are_told_by_the_class_and_the_line(
    mistake: str, text: str, tmp_path: Path
) -> None:
    kind = "workload.kind=tests.workloads.erring:ModelledElsewhere"
    said = rf"^workload.settings: .*ModelledElsewhere refuses them: .*erring.py:\d+: ValidationError: [\s\S]*{text}"
    with pytest.raises(ConfigurationError, match=said):
        materialise_workload(spec_of(kind, f"workload.settings={{width: 5, mistake: {mistake}}}"), tmp_path)


def test_a_function_or_recogniser_that_exits_has_failed(tmp_path: Path) -> None:
    own = spec_of().workload
    with (
        mock.patch("yatt_core.algorithms.own.own_function", return_value=sys.exit),
        pytest.raises(ConfigurationError, match=r"failed: .*SystemExit: 0$"),
    ):
        call(own, WORKLOADS, 0)
    with pytest.raises(ConfigurationError, match=r"recogniser mine failed: .*SystemExit: "):
        _asked("mine", sys.exit, tmp_path)
