"""Small files in the shapes of the field, with invented content: each function writes one below a folder and returns its path.

The shapes are those of verl, DAPO, slime, AIME, DeepScaleR, ARC, LLaMA-Factory, Geometry3K, APPS, DeepCoder, HumanEval, HH-RLHF,
TRL, UltraFeedback, Orca DPO, OpenAI's fine-tuning format, ShareGPT, Alpaca and reasoning traces.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ROWS = 24
TEST_ROWS = 6
NAMES = ("Ada", "Bo", "Cy", "Dee")
Row = dict[str, Any]


def question(number: int) -> str:
    return f"{NAMES[number % 4]} ties {number + 2} ropes with {number + 3} knots each. How many knots is that?"


def knots(number: int) -> int:
    return (number + 2) * (number + 3)


def solution(number: int) -> str:
    return f"There are {number + 2} * {number + 3} = {knots(number)} knots.\n#### {knots(number)}"


def advice(number: int) -> str:
    return f"Coil rope {number} loosely and hang it up to dry."


def write_jsonl(path: Path, rows: Sequence[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_parquet(path: Path, rows: Sequence[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def write_json(path: Path, rows: Sequence[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=2))
    return path


def made(row: Callable[[int], Row], count: int = ROWS, first: int = 0) -> list[Row]:
    return [row(number) for number in range(first, first + count)]


def user(text: str) -> list[Row]:
    return [{"role": "user", "content": text}]


def answered(text: str, reply: str) -> list[Row]:
    return [*user(text), {"role": "assistant", "content": reply}]


def verl(folder: Path) -> Path:
    def row(number: int) -> Row:
        return {
            "data_source": "knots",
            "prompt": user(f'{question(number)} Give the final answer after "####".'),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(knots(number))},
            "extra_info": {"split": "train", "index": number, "answer": solution(number)},
        }

    write_parquet(folder / "verl" / "test.parquet", made(row, TEST_ROWS, 100))
    return write_parquet(folder / "verl" / "train.parquet", made(row))


def dapo(folder: Path) -> Path:
    def row(number: int) -> Row:
        text = (
            "Solve the problem step by step. The last line of your response should be of the form Answer: $Answer (without "
            f'quotes) where $Answer is the answer.\n\n{question(number % 12)}\n\nRemember to put it after "Answer:".'
        )
        return {
            "data_source": "math_dapo",
            "prompt": user(text),
            "reward_model": {"ground_truth": str(knots(number % 12)), "style": "rule"},
            "extra_info": {"index": str(number)},
        }

    return write_parquet(folder / "dapo" / "dapo-math.parquet", made(row))


def slime(folder: Path) -> Path:
    return write_jsonl(
        folder / "slime" / "train.jsonl", made(lambda n: {"prompt": user(question(n)), "label": knots(n)})
    )


def aime(folder: Path) -> Path:
    def row(number: int) -> Row:
        return {
            "ID": f"2031-{number}",
            "Problem": question(number),
            "Solution": solution(number),
            "Answer": knots(number),
        }

    write_parquet(folder / "aime" / "data" / "train-00000-of-00001.parquet", made(row))
    return folder / "aime"


def deepscaler(folder: Path) -> Path:
    def row(number: int) -> Row:
        answer = rf"\frac{{{number}}}{{7}}" if number % 2 else str(number)
        return {"problem": f"Solve $7x = {number}$.", "answer": answer, "solution": rf"So $\boxed{{{answer}}}$."}

    return write_json(folder / "deepscaler.json", made(row))


def arc(folder: Path) -> Path:
    def row(number: int) -> Row:
        texts = [str(knots(number) + step) for step in range(4)]
        choices = {"text": texts[number % 4 :] + texts[: number % 4], "label": ["A", "B", "C", "D"]}
        return {
            "id": str(number),
            "question": question(number),
            "choices": choices,
            "answerKey": "ADCB"[number % 4],
        }

    write_parquet(folder / "arc" / "ARC-Easy" / "train-00000-of-00001.parquet", made(row))
    return folder / "arc"


def system_column(folder: Path) -> Path:
    def row(number: int) -> Row:
        return {"system": "Say the number only.", "prompt": question(number), "answer": str(knots(number))}

    return write_jsonl(folder / "system" / "train.jsonl", made(row))


def picture(number: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (16, 16), (number, 90, 10)).save(stream, "PNG")
    return stream.getvalue()


def geometry(folder: Path) -> Path:
    def row(number: int) -> Row:
        return {
            "images": [{"bytes": picture(number), "path": None}],
            "problem": f"<image>How many sides has figure {number}?",
            "answer": str(number % 5 + 3),
        }

    data = folder / "geometry" / "data"
    write_parquet(data / "test-00000-of-00001.parquet", made(row, TEST_ROWS, 100))
    write_parquet(data / "train-00000-of-00001.parquet", made(row))
    return folder / "geometry"


def apps(folder: Path) -> Path:
    def row(number: int) -> Row:
        calls = number % 3 == 2
        tests = {"inputs": [f"{number} 1\n", "4 5\n"], "outputs": [f"{number + 1}\n", "9\n"]}
        if calls:
            tests = {"fn_name": "total", "inputs": [[[1, number]], [[]]], "outputs": [1 + number, 0]}  # type: ignore[dict-item]
        return {
            "problem_id": number,
            "question": f"Add the numbers of line {number}.",
            "solutions": json.dumps(["print(sum(map(int, input().split())))"]),
            "input_output": json.dumps(tests),
            "difficulty": "interview",
            "starter_code": "class Solution:\n    def total(self, xs):\n        " if calls else "",
        }

    return write_jsonl(folder / "apps" / "train.jsonl", made(row))


def deepcoder(folder: Path) -> Path:
    def row(number: int) -> Row:
        tests = [{"input": f"{number}\n", "output": f"{number + 1}\n", "type": "stdin_stdout"}]
        return {
            "problem": f"Read a number and print the next one ({number}).",
            "tests": json.dumps(tests),
            "metadata": None,
        }

    write_parquet(folder / "deepcoder" / "taco" / "train-00000-of-00001.parquet", made(row))
    return folder / "deepcoder" / "taco"


def humaneval(folder: Path) -> Path:
    def row(number: int) -> Row:
        return {
            "task_id": f"HumanEval/{number}",
            "prompt": f'def plus_{number}(x: int) -> int:\n    """Add {number} to x."""\n',
            "entry_point": f"plus_{number}",
            "canonical_solution": f"    return x + {number}\n",
            "test": f"METADATA = {{}}\n\n\ndef check(candidate):\n    assert candidate(2) == {number + 2}\n",
        }

    return write_jsonl(folder / "HumanEval.jsonl", made(row))


def dialogues(number: int) -> Row:
    start = f"\n\nHuman: Hello.\n\nAssistant: Yes?\n\nHuman: How do I store rope {number}?\n\nAssistant:"
    return {"chosen": f"{start} {advice(number)}", "rejected": f"{start} No idea."}


def hh_rlhf(folder: Path) -> Path:
    return write_jsonl(folder / "hh" / "train.jsonl", made(dialogues))


def hh_rlhf_gz(folder: Path) -> Path:
    write_jsonl(folder / "hh_gz" / "test.jsonl.gz", made(dialogues, TEST_ROWS, 100))
    write_jsonl(folder / "hh_gz" / "train.jsonl.gz", made(dialogues))
    return folder / "hh_gz"


def trl_pairs(folder: Path) -> Path:
    def row(number: int) -> Row:
        return {"prompt": question(number), "chosen": f" {advice(number)}", "rejected": " No idea."}

    return write_jsonl(folder / "pairs" / "train.jsonl", made(row))


def trl_implicit(folder: Path) -> Path:
    def row(number: int) -> Row:
        return {
            "chosen": answered(question(number), advice(number)),
            "rejected": answered(question(number), "No idea."),
            "score_chosen": 1.5,
            "score_rejected": -0.5,
        }

    return write_jsonl(folder / "implicit" / "train.jsonl", made(row))


def ultrafeedback(folder: Path) -> Path:
    def row(number: int) -> Row:
        return {
            "prompt": question(number),
            "prompt_id": f"{number:064}",
            "chosen": answered(question(number), advice(number)),
            "rejected": answered(question(number), "No idea."),
            "messages": answered(question(number), advice(number)),
            "score_chosen": 8.0,
            "score_rejected": 4.0,
        }

    data = folder / "ultrafeedback" / "data"
    write_parquet(data / "test_prefs-00000-of-00001.parquet", made(row, TEST_ROWS, 100))
    write_parquet(data / "train_prefs-00000-of-00001.parquet", made(row))
    write_parquet(data / "train_sft-00000-of-00001.parquet", made(row))
    return folder / "ultrafeedback"


def orca(folder: Path) -> Path:
    def row(number: int) -> Row:
        return {
            "system": "You are brief." if number % 2 else "",
            "question": question(number),
            "chosen": advice(number),
            "rejected": "No idea.",
        }

    return write_jsonl(folder / "orca" / "train.jsonl", made(row))


def trl_labelled(folder: Path) -> Path:
    def row(number: int) -> Row:
        good = number % 2 == 1
        return {"prompt": question(number), "completion": advice(number) if good else "No.", "label": good}

    return write_jsonl(folder / "labelled" / "train.jsonl", made(row))


def openai_chat(folder: Path) -> Path:
    def row(number: int) -> Row:
        first = [{"role": "system", "content": "You sell rope."}, *answered(question(number), advice(number))]
        return {"messages": [*first, *answered("And in rain?", "Indoors.")]}

    return write_jsonl(folder / "chat" / "train.jsonl", made(row))


TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


def openai_tools(folder: Path) -> Path:
    def row(number: int) -> Row:
        arguments = json.dumps({"expression": f"{number}*7"})
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "calculator", "arguments": arguments}}
        messages: list[Row] = [
            *user(f"How much is {number} times 7?"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": str(number * 7)},
            {"role": "assistant", "content": f"It is {number * 7}."},
        ]
        return {"messages": messages, "tools": [TOOL], "parallel_tool_calls": False}

    return write_jsonl(folder / "tools" / "train.jsonl", made(row))


def sharegpt(folder: Path) -> Path:
    def row(number: int) -> Row:
        turns = [("human", question(number)), ("gpt", advice(number)), ("human", "And in winter?"), ("gpt", "Indoors.")]
        return {"id": f"c{number}", "conversations": [{"from": who, "value": text} for who, text in turns]}

    return write_json(folder / "ShareGPT_split.json", made(row))


def alpaca(folder: Path) -> Path:
    def row(number: int) -> Row:
        given = f"Rope {number} is wet." if number % 2 else ""
        return {"instruction": "Say it as a question.", "input": given, "output": advice(number)}

    return write_jsonl(folder / "alpaca.jsonl", made(row))


def traces(folder: Path) -> Path:
    def row(number: int) -> Row:
        return {"prompt": question(number), "response": f"<think>\n{solution(number)}\n</think>\n\n{knots(number)}"}

    return write_jsonl(folder / "traces" / "train.jsonl", made(row))
