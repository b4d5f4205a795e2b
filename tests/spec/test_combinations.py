"""What goes with what: each pair of features is refused with the sentence of the table, or accepted by `yatt check`."""

from __future__ import annotations

import re
import string
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from ops import combinations_reference
from ops.cli.commands.planning.check import check
from ops.terminal.options import Output
from tests.needs import NEEDS_MEGATRON, NEEDS_PEFT, NEEDS_VLLM
from tests.spec.feature_examples import (
    EXAMPLES,
    OF_ONE_SECTION,
    AlternativesError,
    all_pairs,
    covering_sets,
    excluded_in,
    present_in,
    tree_of,
)
from tests.spec.feature_files import write_feature_files
from tests.spec.trees import ROOT, write
from yatt_core.errors import ConfigurationError
from yatt_core.spec import features as known
from yatt_core.spec import json_schema, parse_spec
from yatt_core.spec.combinations import EXCLUSIONS, WHEN, Exclusion, refusals
from yatt_core.spec.features import FEATURES, Feature


def pattern_of(each: Exclusion) -> str:
    """Returns the regular expression of an exclusion's sentence, with any words."""
    pieces = string.Formatter().parse(each.text)
    return "".join(re.escape(text) + ("" if field is None else ".+") for text, field, *_ in pieces)


def said_of(tree: dict[str, Any]) -> list[str]:
    """Returns what is refused of a spec at any time."""
    try:
        spec = parse_spec(tree, "test")
    except ConfigurationError as error:
        return [line.removeprefix("test: ") for line in str(error).splitlines()]
    return [*refusals(spec, "starting"), *refusals(spec, "new_runs")]


def faults_of(tree: dict[str, Any], present: Collection[Feature]) -> list[str]:
    """Returns what is said without being in the table, and what is in the table without being said."""
    expected = excluded_in(present)
    if any(each.refused == "reading" for each in expected):
        expected = [each for each in expected if each.refused == "reading"]
    lines = said_of(tree)
    unknown = [line for line in lines if not any(re.fullmatch(pattern_of(each), line) for each in expected)]
    missing = [each.shown for each in expected if not any(re.fullmatch(pattern_of(each), line) for line in lines)]
    return [*(f"said: {line}" for line in unknown), *(f"not said: {text}" for text in missing)]


LOCAL = tuple(feature for feature in FEATURES if feature is not known.OBJECT_STORE)
"""Features that a check can try without a server."""
COVERING = tuple(covering_sets(LOCAL))


def test_every_feature_has_an_example_and_every_pair_one_sentence() -> None:
    assert set(EXAMPLES) == set(FEATURES)
    pairs = [frozenset({each.first, each.second}) for each in EXCLUSIONS]
    assert len(set(pairs)) == len(pairs)
    assert {feature for pair in pairs for feature in pair} <= set(FEATURES)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.key)
def test_a_feature_alone_is_found_and_accepted(feature: Feature) -> None:
    tree = tree_of([feature])
    spec = parse_spec(tree, "test")
    assert {each for each in FEATURES if list(each.found(spec))} == present_in([feature], tree)
    assert said_of(tree) == []


def test_every_pair_is_refused_with_its_sentence_or_accepted() -> None:
    faults = []
    for pair in all_pairs():
        if set(pair) in OF_ONE_SECTION:
            assert said_of(tree_of(pair)), "the section refuses it"
            continue
        try:
            tree = tree_of(pair)
        except AlternativesError as error:
            assert re.match(r"((rollout|trainer)\.engine|objective|algorithm\.(advantage|entropy))\.kind: ", str(error))
            continue
        said = faults_of(tree, present_in(pair, tree))
        faults += [f"{pair[0].name} with {pair[1].name}: {fault}" for fault in said]
    assert faults == []


def test_samplers_of_a_workload_of_ones_own_batch_nothing_continuously() -> None:
    (line,) = said_of(tree_of([known.OWN_WORKLOAD, known.CONTINUOUS_TORCH_ROLLOUT]))
    assert line.startswith("rollout.engine.continuous: ") and line.endswith("expected false")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    write_feature_files(folder)
    return folder


def marked(number: int, wanted: tuple[Feature, ...]) -> Any:
    """Returns a set of features as a parameter, with what it needs; `make test` has every third."""
    needs = {
        known.LORA: NEEDS_PEFT,
        known.MEGATRON_TRAINER: NEEDS_MEGATRON,
        known.VLLM_ROLLOUT: NEEDS_VLLM,
        known.VLLM_JUDGE: NEEDS_VLLM,
    }
    present = present_in(wanted, tree_of(wanted))
    marks = [needed for feature, needed in needs.items() if feature in present]
    marks += [pytest.mark.verify] if number % 3 else []
    return pytest.param(wanted, marks=marks, id="+".join(each.key.split(":")[0] for each in wanted[:3]))


@pytest.mark.parametrize("wanted", [marked(*each) for each in enumerate(COVERING)])
def test_check_accepts_what_goes_together(
    wanted: tuple[Feature, ...], files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each pair that is not refused is in one of these specs."""
    spec = write(files / "combined.yaml", tree_of(wanted))
    check(spec=spec, home=tmp_path, offline=True, output=Output.JSON)
    assert '"needs"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (known.TORCH_JUDGE, "rewards.parts 'asked'"),
        (known.ENDPOINT_JUDGE, "rewards.parts 'rented'"),
        (known.REWARD_MODEL, "rewards.parts 'scored'"),
        (known.FSDP2_TRAINER, "trainer.engine.kind"),
        pytest.param(known.ADAPTER_SYNC, "trainer.lora.sync", marks=NEEDS_PEFT),
    ],
)
def test_check_refuses_what_images_do_not_go_with(other: Feature, key: str, files: Path, tmp_path: Path) -> None:
    spec = write(files / "combined.yaml", tree_of([known.IMAGES, other]))
    (refused,) = excluded_in(present_in([known.IMAGES, other], tree_of([known.IMAGES, other])))
    with pytest.raises(ConfigurationError) as caught:
        check(spec=spec, home=tmp_path, offline=True, output=Output.JSON)
    (line,) = [line for line in str(caught.value).splitlines() if not line.startswith("`yatt plan`")]
    assert line.startswith(f"{key}: ") and re.fullmatch(pattern_of(refused), line)


def test_the_schema_has_the_table() -> None:
    table = json_schema()["x-combinations"]
    assert len(table) == len(EXCLUSIONS)
    assert {
        "features": ["prompts with images", "packed samples"],
        "keys": ["data.sources[].image_field", "trainer.engine.packed"],
        "refused": WHEN["reading"],
        "says": "trainer.engine.packed: prompts with images cannot be packed; expected false",
    } in table


def test_the_page_of_combinations_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, regenerate the page with `python -m ops.combinations_reference > docs/combinations.md`."""
    combinations_reference.main()
    assert capsys.readouterr().out == (ROOT / "docs" / "combinations.md").read_text()


ROWS_OF_README = {
    "rollout: torch": known.TORCH_ROLLOUT,
    "rollout: vLLM": known.VLLM_ROLLOUT,
    "training: torch": known.TORCH_TRAINER,
    "training: FSDP2": known.FSDP2_TRAINER,
    "training: Megatron-Core": known.MEGATRON_TRAINER,
}
COLUMNS_OF_README = {
    "images": known.IMAGES,
    "tools, multi-turn": known.TOOLS,
    "PPO with a critic": known.CRITIC,
    "on-policy distillation": known.TEACHERS,
    "LoRA": known.LORA,
}


def test_readmes_tables_are_those_of_the_combinations() -> None:
    text = (ROOT / "README.md").read_text().partition("## What runs on what")[2].partition("## How it works")[0]
    compared = 0
    for table in text.split("\n\n"):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "|" in line]
        for row in lines[2:]:
            engines = [engine for name, engine in ROWS_OF_README.items() if name in row[0]]
            if row[0] == "training: torch, FSDP2":
                engines = [known.TORCH_TRAINER, known.FSDP2_TRAINER]
            assert engines, row[0]
            for column, cell in zip(lines[0], row, strict=True):
                if column not in COLUMNS_OF_README:
                    continue
                goes = [not excluded_in({engine, COLUMNS_OF_README[column]}) for engine in engines]
                assert goes == [cell != "no"] * len(engines), f"{row[0]}, {column}: {cell}"
                compared += 1
    assert compared == 5 * 2 + 2 * 3
