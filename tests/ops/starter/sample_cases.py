"""What the sample files mean: one row of a table for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ops.starter import field_files as field
from tests.ops.starter import sample_files as files

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
    "AIME": Means(
        field.aime_csv,
        "rl",
        {"kind": "csv", "prompt_field": "Question", "answer_field": "Answer"},
        has=(files.question(0),),
        answer="006",
        function="exact_match",
        right="It is 6.",
        wrong="It is 60.",
        unused=("ID", "Year", "Problem Number", "Part"),
    ),
    "MMLU": Means(
        field.mmlu_csv,
        "rl",
        {"kind": "csv", "answer_field": "Answer"},
        has=(files.question(0), "A. 6\nB. 7\nC. 8\nD. 9\n", "letter"),
        answer="A",
        function="exact_match",
        right="Not B.\n**Answer: A**",
        wrong="A or B?\nAnswer: B",
        unused=("Subject",),
    ),
    "MATH": Means(
        field.math_solutions,
        "rl",
        {"prompt_field": "problem", "answer_field": "solution", "held_out_split": "test"},
        has=("What is half of $0$?",),
        answer=r"Halving gives $\boxed{\frac{0}{2}}$.",
        function="math_equal",
        system=r"Put the final answer in \boxed{}.",
        right=r"$\boxed{0}$",
        wrong=r"$\boxed{\frac{1}{2}}$",
        held_out=5,
        unused=("level", "type"),
    ),
    "MetaMathQA": Means(
        field.metamath,
        "sft",
        {"kind": "jsonl", "prompt_field": "query", "answer_field": "response"},
        has=(files.question(0),),
        answer=f"{files.solution(0)}\nThe answer is: 6",
        unused=("type", "original_question"),
    ),
    "OpenOrca": Means(
        field.open_orca,
        "sft",
        {"kind": "parquet", "prompt_field": "question", "system_field": "system_prompt", "answer_field": "response"},
        has=(files.question(0),),
        answer=files.advice(0),
        unused=("id",),
    ),
    "Dolly": Means(
        field.dolly,
        "sft",
        {"answer_field": "response"},
        has=(files.question(0),),
        answer=files.advice(0),
        unused=("category",),
    ),
    "MBPP": Means(
        field.mbpp,
        "rl",
        {"answer_field": "answer"},
        has=("adds 0.\n\nYour code should pass these tests:\n\nassert plus(1) == ONE + 0\nassert plus(0) == 0",),
        function="code_tests",
        right="```python\ndef plus(x):\n    return x\n```",
        wrong="```python\nprint(0)\n```",
        unused=("task_id", "code", "challenge_test_list"),
    ),
    "AQuA": Means(
        field.aqua,
        "rl",
        {"answer_field": "correct"},
        has=(files.question(0), "A)6\nB)7\nC)8\nD)9\nE)10\n"),
        answer="A",
        function="exact_match",
        right="Answer: A",
        wrong="Answer: E",
        unused=("rationale",),
    ),
    "Argilla": Means(
        field.argilla,
        "dpo",
        {
            "kind": "huggingface",
            "prompt_field": "instruction",
            "chosen_field": "chosen_response",
            "rejected_field": "rejected_response",
        },
        has=(files.question(0),),
        unused=("source", "chosen_avg_rating", "chosen_model"),
    ),
    "Natural Questions": Means(
        field.natural_questions,
        "rl",
        {"prompt_field": "question", "answer_field": "golden_answers"},
        has=("Who sold rope 0?",),
        answer="Ada",
        function="exact_match",
        system='End with a line "Answer: " and the answer alone.',
        right="ada bay",
        wrong="Bo",
        held_out=5,
        unused=("id",),
    ),
    "No Robots": Means(
        field.no_robots,
        "sft",
        {"prompt_field": "messages", "held_out_split": "test"},
        has=(files.question(0),),
        reply=(files.advice(0),),
        held_out=5,
        unused=("prompt", "prompt_id", "category", "text"),
    ),
    "CMMLU": Means(
        field.cmmlu,
        "rl",
        {"answer_field": "answer"},
        has=(files.question(0), "(A) 6\n(B) 7\n(C) 8\n(D) 9\n"),
        answer="(A) 6",
        function="exact_match",
        right="Answer: (A) 6",
        wrong="Answer: (B) 7",
        unused=("id", "category"),
    ),
    "labelled talk": Means(
        field.labelled_talk,
        "kto",
        {"prompt_field": "messages", "label_field": "label"},
        has=(files.question(0),),
        reply=(files.advice(0),),
    ),
    "medicine": Means(
        field.medicine,
        "rl",
        {"answer_field": "cop", "held_out_split": "validation"},
        has=(files.question(0), "0. 6\n1. 7\n2. 8\n3. 9\n", "number of the right choice"),
        answer="0",
        function="exact_match",
        right="3 is not.\n**Answer:** 0.",
        wrong="Answer: 6",
        held_out=5,
        unused=("id", "exp", "split 'test'"),
    ),
}
