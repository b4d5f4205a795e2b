"""The text of a first spec: whatever paths and keys contain, it is read back as it was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ops.starter.looks import DataLook, ModelLook
from ops.starter.places import DataLocation
from ops.starter.recognition.recognised import RL, Abilities, Recognised, RewardChoice
from ops.starter.sizes import Sizes
from ops.starter.texts import part_names, spec_text
from ops.starter.understanding import SourceMeaning, Understanding
from ops.starter.yaml_lines import COLUMN, entry
from yatt_core.spec.reading.documents import parse_yaml

SIZES = Sizes(8, 2, 64, 64, 1e-4, 1, False)
NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=80).filter(
    lambda name: name not in (".", "..")
)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


def read_back(path: str, model: str, recognised: Recognised) -> dict[str, Any]:
    """Returns the values of a spec for a data file and a model, both relative to the spec's folder."""
    folder = Path("/specs")
    look = DataLook(DataLocation(folder / path, "jsonl"), ({"a": 1},) * 20, True)
    source = SourceMeaning(look, recognised, {"held_out_path": str(folder / path)}, (), says=(f"held out: {path}",))
    understanding = Understanding((source,), RL, recognised.reward, None)
    network = ModelLook(folder / model, 10, 128, Abilities())
    text = spec_text("run", folder, understanding, network, [], SIZES)
    value: dict[str, Any] = parse_yaml(text, "spec")
    return value


REWARD = RewardChoice("correct", "exact_match", "the last number", {"extract": "last_number"})


@given(path=PATHS, model=PATHS, key=NAMES)
@example(path="a # b", model="x: y", key="#")
@example(path='it\'s "quoted"', model="- a", key="a: b")
@example(path="a" * 300, model="b" * COLUMN, key="null")
@example(path="line\nbreak", model=" blank ", key=" Answer ")
@example(path="é\u2028#", model="*anchor", key="{{ a }}")
def test_paths_and_keys_are_read_back_as_they_are(path: str, model: str, key: str) -> None:
    recognised = Recognised("rows", RL, {"prompt_field": key, "answer_field": key}, REWARD, unused=(key, path))
    tree = read_back(path, model, recognised)
    source = tree["data"]["sources"][0]
    assert (source["path"], source["held_out_path"], tree["model"]["path"]) == (path, path, model)
    assert (source["prompt_field"], source["answer_field"]) == (key, key)
    assert tree["rewards"]["parts"][0]["options"] == {"extract": "last_number"}


@given(value=st.text(st.characters(exclude_categories=["Cs"]), max_size=200), comment=st.text(max_size=20))
@example(value="{{ question }}\n\n{% for c in choices %}- {{ c }}\n{% endfor %}\n", comment="")
@example(value="  indented\n", comment="a")
@example(value="ends with several\n\n\n", comment="# b")
@example(value="tab\there\r\n", comment="")
def test_every_text_is_read_back_with_its_comment(value: str, comment: str) -> None:
    assert parse_yaml(f"a:\n{entry(2, 'key', value, comment)}\n", "it") == {"a": {"key": value}}


def test_a_comment_stands_behind_two_blanks() -> None:
    assert entry(0, "path", "a" * 100, "12 rows").endswith("a  # 12 rows")
    assert entry(0, "path", "a", "12 rows").index("#") == COLUMN


def test_reward_parts_have_names_of_their_own() -> None:
    assert part_names(["a.py:score", "b.py:score", "c.py:Mean", "exact_match", "d.py:mean", "e.py:_"]) == [
        "score",
        "score_2",
        "reward_mean",
        "exact_match",
        "reward_mean_2",
        "reward",
    ]
