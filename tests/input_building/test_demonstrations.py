"""Demonstrations that supervised fine-tuning asks for but the sources lack are reported before anything is built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.inputs.example_specs import SPELL, VIRTUAL, run_spec, write_jsonl
from yatt_core.errors import ConfigurationError
from yatt_core.input_building.demonstrations import check_demonstrations
from yatt_core.input_building.materialise import materialise

FEW = {"held_out": 10, "probe": 10, "max_prompt_tokens": 100}


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (40, "sft: prompt 0/train/a.jsonl:16 has no reference answer"),
        (80, "sft.demonstrations: 40 of 80 "),
    ],
)
def test_the_check_reports_what_building_the_inputs_would(tmp_path: Path, count: int, says: str) -> None:
    rows = [{"prompt": f"q{i}", "answer": None if i == 15 else "a"} for i in range(60)]
    sources = [write_jsonl(tmp_path / "a.jsonl", rows), {**SPELL, "size": 44}]
    spec = run_spec(*sources, data=FEW, sft={"demonstrations": count}, **VIRTUAL)
    check_demonstrations(spec.data, spec.seed, 20, whole=True)
    with pytest.raises(ConfigurationError) as early:
        check_demonstrations(spec.data, spec.seed, count, whole=True)
    assert str(early.value).startswith(says)
    with pytest.raises(ConfigurationError, match=f"^{re.escape(str(early.value))}$"):
        materialise(spec, tmp_path / "r")


def test_sources_too_large_to_split_are_checked_by_row_count(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"prompt": f"q{i}"} for i in range(30)])
    data = run_spec(source, {**SPELL, "weight": 2.0, "size": 50}, **VIRTUAL).data
    check_demonstrations(data, 0, 75, whole=False)
    with pytest.raises(ConfigurationError, match=r"31 of 93 .*data\.sources\.0.* 30 rows"):
        check_demonstrations(data, 0, 93, whole=False)
    with pytest.raises(ConfigurationError, match=r"60 of 90 .*data\.sources\.1.* 50 rows"):
        check_demonstrations(data, 0, 90, whole=False)
