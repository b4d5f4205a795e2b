"""Pools of a curriculum in a run's inputs: by the values of a key, and by source."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.inputs.example_specs import VIRTUAL, run_spec, write_jsonl
from yatt_core.errors import ConfigurationError
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.inputs.reader import Inputs
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.protocols.receipts import PromptPool, PromptRef
from yatt_core.spec import RunSpec

LEVELS = ("10", "2", "two words", None)


def spec_of(folder: Path, curriculum: dict[str, Any] | None) -> RunSpec:
    """Returns a spec of 40 rows of each of two files, the second of which has no levels."""
    sources = [
        write_jsonl(folder / "easy.jsonl", ({"prompt": f"a{n}", "info": {"level": LEVELS[n % 4]}} for n in range(40))),
        write_jsonl(folder / "hard.jsonl", ({"prompt": f"b{n}"} for n in range(40))),
    ]
    data = {"held_out": 8, "probe": 0, "curriculum": curriculum}
    return run_spec(*sources, data=data, **VIRTUAL)


def test_a_key_divides_sources_into_pools_whose_prompts_are_all_drawn_once_an_epoch(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {"field": "info.level", "min_share": 0.0})
    receipt = materialise(spec, tmp_path / "run")
    assert [pool.name for pool in receipt.pools] == [
        "easy.2", "easy.10", "easy.none", "easy.two_words", "hard.none"
    ]  # fmt: skip
    assert [pool.source for pool in receipt.pools] == [0, 0, 0, 0, 1]
    assert sum(pool.size for pool in receipt.pools) == receipt.train_prompts
    inputs = Inputs.open(tmp_path / "run" / INPUTS, spec)
    for number, pool in enumerate(receipt.pools):
        epoch = [inputs.prompt(PromptRef(0, number, position)) for position in range(pool.size)]
        assert len({prompt.text for prompt in epoch}) == pool.size
        levels = {prompt.entry.get("info", {}).get("level") for prompt in epoch}
        assert levels == {{"2": "2", "10": "10", "two_words": "two words"}.get(pool.name.split(".")[1])}
    cursor = Cursor.start(spec.data).under(spec.data, receipt.pools)
    counts = Counter(ref.source for ref in draw(spec.data, spec.seed, cursor, 4000)[0])
    shares = [
        pool.size / sum(each.size for each in receipt.pools if each.source == pool.source) / 2 for pool in receipt.pools
    ]
    assert [counts[number] / 4000 for number in range(5)] == pytest.approx(shares, abs=0.03)


def test_without_a_key_each_source_is_a_pool(tmp_path: Path) -> None:
    found = materialise(spec_of(tmp_path, {}), tmp_path / "run")
    assert found.pools == (PromptPool("easy", 0, 36), PromptPool("hard", 1, 36))
    plain = spec_of(tmp_path, None)
    assert materialise(plain, tmp_path / "plain").pools == ()
    assert materialise(plain, tmp_path / "run").pools == (), "a curriculum over sources may begin and end in a run"
    with pytest.raises(ConfigurationError, match="pools"):
        materialise(spec_of(tmp_path, {"field": "info.level"}), tmp_path / "run")


@pytest.mark.parametrize(("field", "told"), [("level", "no row has this key"), ("prompt", "values")])
def test_a_key_that_cannot_divide_is_refused(tmp_path: Path, field: str, told: str) -> None:
    rows = ({"prompt": f"p{n}", "level": None} for n in range(400))
    spec = run_spec(
        write_jsonl(tmp_path / "a.jsonl", rows), data={"held_out": 4, "curriculum": {"field": field}}, **VIRTUAL
    )
    with pytest.raises(ConfigurationError) as refused:
        materialise(spec, tmp_path / "run")
    assert f"data.curriculum.field '{field}'" in str(refused.value) and told in str(refused.value)


def test_the_key_may_lead_into_json_texts_and_have_dots_in_its_name(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"a{n}", "info": f'{{"level": "{n % 2}"}}', "set.level": f"{n % 2}"}
        if n < 30
        else {"prompt": f"a{n}"}
        for n in range(40)
    ]
    for field in ("info.level", "set.level"):
        source = write_jsonl(tmp_path / "rows.jsonl", rows)
        data = {"held_out": 8, "probe": 0, "curriculum": {"field": field, "min_share": 0.0}}
        receipt = materialise(run_spec(source, data=data, **VIRTUAL), tmp_path / field)
        assert [pool.name for pool in receipt.pools] == ["rows.0", "rows.1", "rows.none"]
