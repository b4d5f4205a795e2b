"""Rows that teach nothing or the opposite of what they say are counted, and named by the first of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.preflight.first_prompt import first_prompt
from ops.preflight.row_contents import RowContents, look_at_rows
from tests.input_building.test_rows import DPO, spec_of
from tests.models.folders import make_folder
from tests.ops.preflight.test_row_trial import rows_of
from tests.ops.preflight.test_row_trial import spec_of as sampling_spec
from yatt_core.datasets.sources import first_prompts
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec

KTO = {"kind": "kto"}
GOOD = {"prompt": "p", "chosen": "good", "rejected": "bad"}


def found(folder: Path, objective: dict[str, Any], rows: list[dict[str, Any]]) -> RowContents:
    spec = spec_of(folder, rows, objective)
    return look_at_rows(spec, first_prompts(spec.data, spec.seed, len(rows)))


def test_pairs_of_equal_responses_are_counted_and_refused_if_all_are(tmp_path: Path) -> None:
    equal = {**GOOD, "rejected": " good\n"}
    assert found(tmp_path, DPO, [GOOD, GOOD]) == RowContents([])
    (line,) = found(tmp_path, DPO, [GOOD, equal, GOOD, equal]).warnings
    assert "are equal in 2 of 4 rows, the first is 0/train/rows.jsonl:2" in line
    with pytest.raises(ConfigurationError, match="are equal in 2 of 2 rows"):
        found(tmp_path, DPO, [equal, equal])


@pytest.mark.parametrize(
    "keys",
    [
        ("score_chosen", "score_rejected"),
        ("rejected_rating", "chosen_rating")[::-1],
        ("chosen-reward", "rejected-reward"),
    ],
)
def test_scores_that_contradict_the_order_are_counted_and_refused_if_all_do(
    tmp_path: Path, keys: tuple[str, str]
) -> None:
    right = {**GOOD, keys[0]: 8.0, keys[1]: 2}
    wrong = {**GOOD, keys[0]: "2.0", keys[1]: 8}
    tie = {**GOOD, keys[0]: 1, keys[1]: 1}
    assert not found(tmp_path, DPO, [right, tie, {**GOOD, keys[0]: None, keys[1]: "n/a"}]).warnings
    (line,) = found(tmp_path, DPO, [right, wrong, tie, GOOD]).warnings
    assert f"{keys[0]} is below {keys[1]} in 1 of 3 rows, the first is 0/train/rows.jsonl:2 with 2 and 8" in line
    with pytest.raises(ConfigurationError, match=r"in 2 of 2 rows.*exchange chosen_field"):
        found(tmp_path, DPO, [wrong, wrong])


def labelled(*labels: bool, answer: str = "#") -> list[dict[str, Any]]:
    return [
        {"prompt": "p", "answer": answer.replace("#", str(row)), "label": label} for row, label in enumerate(labels)
    ]


def test_labels_are_counted_and_one_that_is_missing_is_named(tmp_path: Path) -> None:
    assert found(tmp_path, KTO, labelled(True, False, True)) == RowContents([], (2, 1))
    for label in (True, False):
        (line,) = found(tmp_path, KTO, labelled(label, label)).warnings
        assert f"all 2 rows are labelled {str(label).lower()}" in line


def test_the_same_response_with_both_labels_is_named(tmp_path: Path) -> None:
    (line,) = found(tmp_path, KTO, labelled(True, True, False, answer="same")).warnings
    assert "1 of 3 rows, the first is 0/train/rows.jsonl:3, repeat" in line


def test_an_undesirable_response_is_one_to_avoid(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    for label in (True, False):
        rows = labelled(label, label)
        tree = {**spec_of(tmp_path, rows, KTO).model_dump(mode="json", exclude={"model", "rewards"})}
        spec = RunSpec.model_validate({**tree, "model": {"kind": "folder", "path": str(folder)}})
        shown = first_prompt(spec, str(folder), first_prompts(spec.data, spec.seed, 1)[0])
        assert shown is not None and shown.avoided is not label


@pytest.mark.parametrize(
    ("function", "options", "answers", "contradicted"),
    [
        ("exact_match", {}, ["1", "1.0", "x"], 1),
        ("exact_match", {"extract_reference": "last_number"}, ["so 3", "hence 3", "4"], 1),
        ("math_equal", {}, ["1/2", r"\frac{1}{2}", "0.5"], 0),
        ("math_equal", {}, ["2", "2.0", "3", "4"], 2),
        ("exact_match", {}, ["Yes", "yes", None], 0),
    ],
)
def test_equal_prompts_with_different_answers_are_named(
    function: str, options: dict[str, Any], answers: list[Any], contradicted: int
) -> None:
    warnings = look_at_rows(sampling_spec(function, options=options), rows_of(*answers)).warnings
    assert len(warnings) == bool(contradicted)
    if contradicted:
        assert f"have {contradicted} of {len(answers)} rows, the first is 0/train/a:2 with" in warnings[0]
