"""Reference answers and tests are tried before a run: all of them, only once, and with the rows that fail named."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.preflight import row_pool, row_trial
from ops.preflight.row_trial import LOGGER, RowsTried, try_first_rows, try_rows
from ops.preflight.tried_rows import TriedRows
from tests.matrix import examples
from tests.rewards.test_code_tests import ISOLATION
from yatt_core.errors import ConfigurationError
from yatt_core.prompts.prompt import Prompt
from yatt_core.spec import RunSpec
from yatt_core.spec.reading.load import parse_spec

STDIN = [{"input": "1", "output": "2"}]
CHECK = "def check(candidate):\n    assert candidate(1) == 2\n"


def spec_of(function: str, source: dict[str, Any] | None = None, **rest: Any) -> RunSpec:
    part = {"name": "own", "function": function, "timeout_seconds": 60.0, **rest}
    if function == "code_tests":
        part["options"] = {"isolation": ISOLATION, **rest.get("options", {})}
    data = {"sources": [source or {"kind": "reasoning_gym", "task": "spell_backward"}]}
    virtual = {"engine": {"kind": "virtual"}}
    tree = {"name": "a", "data": data, "rollout": virtual, "trainer": virtual, "rewards": {"parts": [part]}}
    return parse_spec(tree, "test")


def rows_of(*answers: Any, **columns: Any) -> list[Prompt]:
    return [Prompt(0, n, f"0/train/a:{n}", "q", answer, dict(columns)) for n, answer in enumerate(answers)]


def rows_with(*tests: Any, **columns: Any) -> list[Prompt]:
    return [Prompt(0, n, f"0/train/a:{n}", "q", None, {"tests": one, **columns}) for n, one in enumerate(tests)]


def faults(spec: RunSpec, prompts: list[Prompt], home: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        try_rows(spec, prompts, len(prompts), home)
    return str(caught.value)


def test_references_that_cannot_be_parsed_are_named_and_counted(tmp_path: Path) -> None:
    spec = spec_of("math_equal", options={"extract": "boxed"})
    answers = ["1", r"\frac{1}{2}", "}{", "$3$", "}{", "-1,000", "}{", "}{"]
    said = faults(spec, rows_of(*answers), tmp_path)
    assert "rewards.parts 'own': 4 of 8 rows cannot be used: row 0/train/a:2: the reference answer is not" in said
    assert "row 0/train/a:6" in said and "a:7" not in said and said.endswith("...; correct or remove them")


@pytest.mark.parametrize(
    ("function", "options", "prompts", "says"),
    [
        ("exact_match", {"extract_reference": "tag"}, rows_of("<answer>1</answer>", "2"), "a:1: the reference answer has no tag"),
        ("exact_match", {}, rows_of("1", None), "a:1: the prompt has no reference answer"),
        ("math_equal", {"extract_reference": "boxed"}, rows_of(r"\boxed{1}", "2"), "a:1: the reference answer has no boxed"),
        ("math_equal", {}, rows_of("1", "N/A", "none"), "a:1: the reference answer is 'N/A', which stands for a missing one"),
        ("math_equal", {}, rows_of("x", r"\text{Proof.}"), "a:1: the reference answer is"),
        ("math_equal", {"extract": "boxed"}, rows_of("see the solution", "proofs"), "a:0: the reference answer is 'see the"),
        ("code_tests", {}, rows_with(STDIN, []), "row 0/train/a:1: column 'tests' is empty"),
        ("code_tests", {}, rows_with(STDIN, "[1"), "row 0/train/a:1: column 'tests' is not JSON"),
        ("code_tests", {}, rows_with(STDIN, [{"input": "1", "output": " "}]), "a:1: its tests pass without any code"),
        ("code_tests", {}, rows_with("assert f() == 1", "assert True"), "a:1: its tests pass without any code"),
        ("code_tests", {}, rows_with(CHECK), "a:0: column 'tests' has a test 0 that defines check"),
        (
            "code_tests",
            {"entry_point": "f", "prefix": "head"},
            rows_with(CHECK, CHECK.replace("== 2", "is None"), f="g", head='def g(x):\n    """ Next. """\n'),
            "a:1: its tests pass without any code",
        ),
    ],
)  # fmt: skip
def test_a_row_that_nothing_can_be_compared_with_is_refused(
    tmp_path: Path, function: str, options: dict[str, Any], prompts: list[Prompt], says: str
) -> None:
    said = faults(spec_of(function, options=options), prompts, tmp_path)
    assert f"1 of {len(prompts)} rows" in said and says in said


LETTERS = {"extract": "pattern", "pattern": r"(?i)answer:\s*\(?(?P<answer>[ABCD])\b"}
WORDS = {"extract": "pattern", "pattern": r"Answer: (?P<answer>yes|no)$", "case_sensitive": False}


@pytest.mark.parametrize(
    ("options", "right", "wrong", "says"),
    [
        (LETTERS, ["A", "D"], "E", "[ABCD])"),
        (WORDS, ["yes", "No"], "maybe", "'maybe' is never matched"),
        ({"extract": "pattern", "pattern": r"(?P<answer>(?:[)a]|\)|b){2})"}, ["a)", "bb"], "c", "'c' is never matched"),
        ({"extract": "pattern", "pattern": r"#(?P<answer>[^\n]+)"}, ["a b", "ten"], "a\nb", "cannot be"),
        ({"extract": "last_number"}, ["1", "-2.50", "$1,000", "5%"], "ten", "reads nothing"),
        ({"extract": "last_number"}, ["1"], "12 apples", "reads '12'"),
        ({"extract": "last_number"}, ["1"], "1/2", "reads '2'"),
        ({"extract": "last_number", "extract_reference": "last_number"}, ["1 of 2", "so 12 apples"], "N/A", "has no last_number"),
        ({"extract": "boxed"}, ["ten", "{x}"], "}{", "extract: boxed"),
        ({"extract": "tag"}, ["ten", "<b>"], "a<answer>b", "extract: tag"),
    ],
)  # fmt: skip
def test_a_reference_that_no_response_can_match_is_refused(
    tmp_path: Path, options: dict[str, Any], right: list[str], wrong: str, says: str
) -> None:
    spec = spec_of("exact_match", options=options)
    try_rows(spec, rows_of(*right), len(right), tmp_path)
    said = faults(spec, rows_of(*right, wrong, wrong), tmp_path)
    assert f"2 of {len(right) + 2} rows cannot be used: row 0/train/a:{len(right)}: " in said and says in said
    either = [replace(row, other_answers=(right[0],)) for row in rows_of(wrong)]
    if options.get("extract_reference") is None:
        try_rows(spec, either, 1, tmp_path)


def test_references_of_many_rows_are_matched_in_little_time(tmp_path: Path) -> None:
    prompts = rows_of(*(str(row % 5000) for row in range(20_000)))
    options = {"extract": "pattern", "pattern": r"Answer: (?P<answer>[0-9]+)"}
    began = time.monotonic()
    try_rows(spec_of("exact_match", options=options), prompts, len(prompts), tmp_path)
    assert time.monotonic() - began < 10


def test_where_failures_mark_samples_the_rows_are_a_warning(tmp_path: Path) -> None:
    prompts = rows_of("1", "}{")
    tried = try_rows(spec_of("math_equal", on_failure="zero"), prompts, len(prompts), tmp_path)
    assert (tried.tried, tried.of, len(tried.warnings)) == (2, 2, 1)
    assert "1 of 2 rows cannot be used: row 0/train/a:1" in tried.warnings[0]


def test_parts_that_compare_with_nothing_read_no_row(tmp_path: Path) -> None:
    def never() -> Any:
        raise AssertionError
        yield

    spec = spec_of("length_range", options={"maximum": 9})
    assert try_rows(spec, never(), 5, tmp_path) == RowsTried(0, 5)


def test_a_verdict_is_kept_until_what_it_depends_on_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = row_trial.try_jobs

    def counted(jobs: Any, told: Any) -> Any:
        for job, outcome in real(jobs, told):
            asked.append(job.prompt.prompt_id)
            yield job, outcome

    monkeypatch.setattr(row_trial, "try_jobs", counted)
    prompts = rows_of(r"\frac{1}{3}", "7", r"\sqrt{2}", "}{")

    def tried(spec: RunSpec) -> int:
        asked.clear()
        with pytest.raises(ConfigurationError, match="1 of 4 rows"):
            try_rows(spec, prompts, len(prompts), tmp_path)
        return len(asked)

    spec = spec_of("math_equal")
    assert tried(spec) == 3, "a plain number needs no parser"
    assert tried(spec) == 1, "what failed is tried again"
    assert tried(spec_of("math_equal", options={"decimals": 3})) == 3
    prompts[0] = rows_of(r"\frac{1}{4}")[0]
    assert tried(spec) == 2
    for file in (tmp_path / "checks").iterdir():
        file.unlink()
    assert tried(spec) == 3


def test_many_rows_are_tried_on_all_cores_with_progress_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(row_pool, "FEW", 3)
    monkeypatch.setattr(row_trial, "PAUSE_SECONDS", 0.0)
    tests = [[f"assert f({n}) == {n}"] if n % 40 else ["assert True"] for n in range(120)]
    with caplog.at_level(logging.INFO, LOGGER):
        said = faults(spec_of("code_tests"), rows_with(*tests), tmp_path)
    assert "3 of 120 rows" in said
    assert said.index("a:0:") < said.index("a:40:") < said.index("a:80:")
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "trying the reference answers and tests of 120 rows"
    assert any(line.startswith("tried ") and " of 120 rows, about " in line and line.endswith(" left") for line in told)


def test_a_sample_is_spread_over_the_rows(tmp_path: Path) -> None:
    prompts = rows_of(*["}{" if n == 50 else "1" for n in range(100)])
    tried = try_rows(spec_of("math_equal"), prompts, 100, tmp_path, sample=7)
    assert (tried.tried, tried.of) == (7, 100)
    with pytest.raises(ConfigurationError, match="of 100 rows"):
        try_rows(spec_of("math_equal"), prompts, 100, tmp_path, sample=500)
    seen: list[int] = []
    watched = (seen.append(prompt.index) or prompt for prompt in rows_of(*["1"] * 10))
    try_rows(spec_of("exact_match"), watched, 10, tmp_path, sample=5)
    assert len(seen) == 10, "rows are read in order"


def test_only_the_first_rows_are_tried_at_the_start(tmp_path: Path) -> None:
    rows = [{"prompt": f"q {n}", "answer": "}{" if n >= row_trial.ROWS_AT_THE_START else "1"} for n in range(100)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = spec_of("math_equal", {"kind": "jsonl", "path": str(tmp_path / "rows.jsonl")})
    assert try_first_rows(spec, tmp_path).tried == row_trial.ROWS_AT_THE_START
    rows[3]["answer"] = "}{"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigurationError, match=r"rows\.jsonl:4: the reference"):
        try_first_rows(spec, tmp_path)


DIGESTS = st.lists(st.text("0123456789abcdef", min_size=64, max_size=64), max_size=8)


@given(DIGESTS, DIGESTS, st.binary(max_size=40))
@settings(max_examples=examples(50), deadline=None)
def test_a_torn_file_of_verdicts_forgets_but_never_invents(
    tmp_path_factory: Any, kept: Any, other: Any, torn: bytes
) -> None:
    folder = tmp_path_factory.mktemp("checks")
    TriedRows(folder).keep(kept)
    assert all(TriedRows(folder).knows(digest) for digest in kept)
    (file,) = [*folder.iterdir()] or [folder / "rows-1.txt"]
    file.write_bytes((file.read_bytes() if file.exists() else b"") + torn)
    assert all(TriedRows(folder).knows(digest) for digest in kept[:-1])
    assert not any(TriedRows(folder).knows(digest) for digest in set(other) - set(kept))


def test_the_file_of_verdicts_is_bounded_and_need_not_be_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TriedRows(tmp_path).keep(["a" * 64, "b" * 64])
    monkeypatch.setattr("ops.preflight.tried_rows.MOST_BYTES", 40)
    assert not TriedRows(tmp_path).knows("a" * 64) and not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    TriedRows(tmp_path / "file").keep(["a" * 64])
