"""What `yatt init` writes for files in the shapes of the field means what they mean, at the first try and as written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ops.conftest import Yatt
from tests.ops.starter import sample_files as files
from tests.ops.starter.reading import score, written
from yatt_core.datasets.sources import Collection, collect_prompts
from yatt_core.spec import RunSpec

SUM = "```python\nimport sys\nprint(sum(map(int, sys.stdin.read().split())))\n```"
TOTAL = "```python\nclass Solution:\n    def total(self, xs):\n        return sum(xs)\n```"


@dataclass(frozen=True)
class Means:
    """What a file means.

    text: of the first training prompt; `has`: parts of it, where it is long.
    reply: texts of the messages that are learnt.
    right, wrong: responses to the first prompt that score 1 and 0.
    held_out: number of rows of the file's own held-out split; None if it has none.
    unused: keys that the spec names as not used.
    """

    write: Callable[[Path], Path]
    objective: str
    source: dict[str, Any]
    text: str = ""
    has: tuple[str, ...] = ()
    answer: str | None = None
    reply: tuple[str, ...] = ()
    function: str = ""
    right: str = ""
    wrong: str = ""
    held_out: int | None = None
    unused: tuple[str, ...] = ()
    model: str = "plain"
    system: str = ""


FIRST = files.question(0)
CASES = {
    "verl": Means(
        files.verl,
        "rl",
        {"prompt_field": "prompt", "answer_field": "reward_model.ground_truth"},
        text=f'{FIRST} Give the final answer after "####".',
        answer="6",
        function="exact_match",
        right="2 * 3 = 6\n#### 6",
        wrong="#### 5 is not 6",
        held_out=files.TEST_ROWS,
        unused=("data_source", "ability", "reward_model.style", "extra_info"),
    ),
    "dapo": Means(
        files.dapo,
        "rl",
        {"prompt_field": "prompt", "answer_field": "reward_model.ground_truth"},
        has=(FIRST, "Answer: $Answer"),
        answer="6",
        function="exact_match",
        right="It is 7, no.\nAnswer: $6$",
        wrong="Answer: 7, not 6",
    ),
    "slime": Means(
        files.slime,
        "rl",
        {"prompt_field": "prompt", "answer_field": "label"},
        text=FIRST,
        answer="6",
        function="exact_match",
        right="That makes 6.",
        wrong="That makes 6 or 7.",
    ),
    "aime": Means(
        files.aime,
        "rl",
        {"prompt_field": "Problem", "answer_field": "Answer"},
        text=FIRST,
        answer="6",
        function="exact_match",
        right="So 006.",
        wrong="So 60.",
        unused=("ID", "Solution"),
    ),
    "deepscaler": Means(
        files.deepscaler,
        "rl",
        {"prompt_field": "problem", "answer_field": "answer"},
        text="Solve $7x = 0$.",
        answer="0",
        function="math_equal",
        right=r"Then $x = \boxed{\frac{0}{7}}$.",
        wrong=r"\boxed{7}",
        unused=("solution",),
        system=r"Put the final answer in \boxed{}.",
    ),
    "arc": Means(
        files.arc,
        "rl",
        {"answer_field": "answerKey"},
        has=(FIRST, "A. 6\nB. 7\nC. 8\nD. 9\n"),
        answer="A",
        function="exact_match",
        right="B is wrong.\nAnswer: A",
        wrong="A knot more.\nAnswer: B",
        unused=("id",),
    ),
    "system column": Means(
        files.system_column,
        "rl",
        {"prompt_field": "prompt", "system_field": "system", "answer_field": "answer"},
        has=("Say the number only.", FIRST),
        answer="6",
        function="exact_match",
        right="6",
        wrong="7",
    ),
    "geometry": Means(
        files.geometry,
        "rl",
        {"prompt_field": "problem", "image_field": "images", "answer_field": "answer"},
        has=("How many sides has figure 0?",),
        answer="3",
        function="exact_match",
        right="3",
        wrong="4",
        held_out=files.TEST_ROWS,
        model="vision",
    ),
    "apps": Means(
        files.apps,
        "rl",
        {},
        text="Add the numbers of line 0.",
        function="code_tests",
        right=SUM,
        wrong="```python\nprint(1)\n```",
        unused=("problem_id", "solutions", "difficulty"),
    ),
    "deepcoder": Means(
        files.deepcoder,
        "rl",
        {"prompt_field": "problem"},
        text="Read a number and print the next one (0).",
        function="code_tests",
        right="```python\nprint(int(input()) + 1)\n```",
        wrong=SUM,
        unused=("metadata",),
    ),
    "humaneval": Means(
        files.humaneval,
        "rl",
        {"prompt_field": "prompt"},
        has=("def plus_0(x: int)",),
        function="code_tests",
        right="    return x + 0\n",
        wrong="```python\ndef plus_0(x):\n    return 7\n```",
        unused=("task_id", "canonical_solution"),
    ),
    "hh_rlhf": Means(
        files.hh_rlhf,
        "dpo",
        {"prompt_field": None, "chosen_field": "chosen", "rejected_field": "rejected"},
        has=("Hello.", "Yes?", "How do I store rope 0?"),
    ),
    "hh_rlhf_gz": Means(
        files.hh_rlhf_gz, "dpo", {"prompt_field": None}, has=("How do I store rope 0?",), held_out=files.TEST_ROWS
    ),
    "trl_pairs": Means(files.trl_pairs, "dpo", {"prompt_field": "prompt", "chosen_field": "chosen"}, text=FIRST),
    "trl_implicit": Means(
        files.trl_implicit, "dpo", {"prompt_field": None}, text=FIRST, unused=("score_chosen", "score_rejected")
    ),
    "ultrafeedback": Means(
        files.ultrafeedback,
        "dpo",
        {"prompt_field": "prompt", "split": "train_prefs", "held_out_split": "test_prefs"},
        text=FIRST,
        held_out=files.TEST_ROWS,
        unused=("'train_sft'", "messages", "prompt_id"),
    ),
    "orca": Means(
        files.orca, "dpo", {"prompt_field": "question", "system_field": "system", "chosen_field": "chosen"}, text=FIRST
    ),
    "trl_labelled": Means(
        files.trl_labelled,
        "kto",
        {"prompt_field": "prompt", "answer_field": "completion", "label_field": "label"},
        text=FIRST,
        answer="No.",
    ),
    "openai_chat": Means(
        files.openai_chat,
        "sft",
        {"prompt_field": "messages"},
        has=("You sell rope.", FIRST),
        reply=(files.advice(0), "And in rain?", "Indoors."),
    ),
    "openai_tools": Means(
        files.openai_tools,
        "sft",
        {"prompt_field": "messages", "tools_field": "tools"},
        text="How much is 0 times 7?",
        reply=("", "0", "It is 0."),
        unused=("parallel_tool_calls",),
        model="tools",
    ),
    "sharegpt": Means(
        files.sharegpt,
        "sft",
        {"prompt_field": "conversations"},
        text=FIRST,
        reply=(files.advice(0), "And in winter?", "Indoors."),
        unused=("id",),
    ),
    "alpaca": Means(
        files.alpaca, "sft", {"answer_field": "output"}, text="Say it as a question.", answer=files.advice(0)
    ),
    "traces": Means(
        files.traces,
        "sft",
        {"prompt_field": "prompt", "answer_field": "response"},
        text=FIRST,
        answer=f"<think>\n{files.solution(0)}\n</think>\n\n6",
    ),
}


def check_rows(means: Means, spec: RunSpec, rows: Collection) -> None:
    """Checks the first row, as the run reads it."""
    first = next(iter(rows.train[0]))
    assert means.text in ("", first.text)
    assert all(part in first.text for part in means.has), first.text
    assert tuple(message.content for message in first.reply) == means.reply
    if not means.reply:
        assert first.answer == means.answer
    assert len(first.media) == (1 if means.model == "vision" else 0)
    assert bool(first.tools) == (means.model == "tools")
    if means.function:
        assert score(spec, first, means.right) == 1.0
        assert score(spec, first, means.wrong) == 0.0


@pytest.mark.parametrize("name", CASES)
def test_the_spec_means_what_the_file_means(
    yatt: Yatt, tmp_path: Path, model: Callable[[str], Path], name: str
) -> None:
    means = CASES[name]
    spec, text, said = written(yatt, tmp_path, means.write(tmp_path / "data"), model(means.model))
    assert (spec.objective.kind if spec.objective else "rl") == means.objective == said["objective"]
    source = spec.data.sources[0].model_dump()
    assert {key: source[key] for key in means.source} == means.source
    assert [part.function for part in spec.rewards.functions] == ([means.function] if means.function else [])
    assert (spec.data.system_prompt or "") == means.system
    rows = collect_prompts(spec.data, spec.seed, with_probe=False)
    assert means.held_out in (None, len(rows.held_out))
    assert (means.held_out is not None) == any(line.lstrip().startswith("held_out_") for line in text.splitlines())
    check_rows(means, spec, rows)
    for key in means.unused:
        assert key in text and key in str(said["sources"])


def test_repeated_questions_are_not_held_out_and_trained(
    yatt: Yatt, tmp_path: Path, model: Callable[[str], Path]
) -> None:
    spec, _, _ = written(yatt, tmp_path, files.dapo(tmp_path / "data"), model("plain"))
    rows = collect_prompts(spec.data, spec.seed, with_probe=False)
    held_out = {prompt.text for prompt in rows.held_out}
    assert held_out and not held_out & {prompt.text for prompt in rows.train[0]}


def test_calls_of_functions_are_tested_beside_programs(
    yatt: Yatt, tmp_path: Path, model: Callable[[str], Path]
) -> None:
    spec, _, _ = written(yatt, tmp_path, files.apps(tmp_path / "data"), model("plain"))
    rows = list(collect_prompts(spec.data, spec.seed, with_probe=False).train[0])
    calling = next(prompt for prompt in rows if "fn_name" in prompt.entry["input_output"])
    assert "def total(self, xs):" in calling.text
    assert (score(spec, calling, TOTAL), score(spec, calling, SUM)) == (1.0, 0.0)


def test_alpaca_inputs_and_system_messages_are_part_of_the_prompt(
    yatt: Yatt, tmp_path: Path, model: Callable[[str], Path]
) -> None:
    spec, _, _ = written(yatt, tmp_path, files.alpaca(tmp_path / "data"), model("plain"))
    texts = [prompt.text for prompt in collect_prompts(spec.data, spec.seed, with_probe=False).train[0]]
    assert texts[:2] == ["Say it as a question.", "Say it as a question.\n\nRope 1 is wet."]


def test_system_messages_that_are_empty_are_left_out(yatt: Yatt, tmp_path: Path, model: Callable[[str], Path]) -> None:
    spec, _, _ = written(yatt, tmp_path, files.orca(tmp_path / "data"), model("plain"))
    prompts = list(collect_prompts(spec.data, spec.seed, with_probe=False).train[0])[:2]
    assert [[message.role for message in prompt.messages] for prompt in prompts] == [[], ["system", "user"]]


@pytest.mark.parametrize(
    ("write", "says"),
    [(files.geometry, "vision tower"), (files.openai_tools, "does not write them")],
)
def test_what_the_model_cannot_do_is_refused_by_name(
    yatt: Yatt, tmp_path: Path, model: Callable[[str], Path], write: Callable[[Path], Path], says: str
) -> None:
    answer = yatt("init", str(tmp_path / "run"), "--data", str(write(tmp_path)), "--model", str(model("plain")))
    assert (answer.code, says in answer.err) == (2, True), answer.err
    assert not (tmp_path / "run").exists()
