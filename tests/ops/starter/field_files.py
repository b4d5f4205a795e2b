"""Small files in more shapes of the field, each with its source, and rows that no run learns from; contents are invented."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tests.ops.starter.sample_files import (
    Row,
    advice,
    answered,
    knots,
    made,
    question,
    solution,
    write_json,
    write_jsonl,
    write_parquet,
)


def write_csv(path: Path, rows: Sequence[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_saved(folder: Path, rows: Sequence[Row]) -> Path:
    """Writes a dataset as `save_to_disk` of Hugging Face datasets does."""
    split = folder / "train"
    split.mkdir(parents=True)
    table = pa.Table.from_pylist(list(rows))
    with (
        pa.OSFile(str(split / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as out,
    ):
        out.write_table(table)
    (split / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))
    return folder


def aime_csv(folder: Path) -> Path:
    """AIME_Dataset_1983_2024.csv of Kaggle; its columns as in a reader on GitHub (code search "AIME_Dataset_1983_2024.csv")."""

    def row(number: int) -> Row:
        return {
            "ID": f"2031-{number}",
            "Year": 2031,
            "Problem Number": number,
            "Question": question(number),
            "Answer": f"{knots(number):03}",
            "Part": "I",
        }

    return write_csv(folder / "AIME_Dataset.csv", made(row))


def mmlu_csv(folder: Path) -> Path:
    """mmlu.csv of OpenAI's simple-evals, as NeMo-RL reads it: nemo_rl/data/eval_datasets/mmlu.py."""

    def row(number: int) -> Row:
        right = number % 4
        texts = {letter: knots(number) + place - right for place, letter in enumerate("ABCD")}
        return {"Question": question(number), **texts, "Answer": "ABCD"[right], "Subject": "knots"}

    return write_csv(folder / "mmlu.csv", made(row))


def math_solutions(folder: Path) -> Path:
    """hendrycks_math: problem, level, type, solution; github.com/yks23/CoT-Decomposition, dataset/hendrycks_math/README.md."""

    def row(number: int) -> Row:
        return {
            "problem": f"What is half of ${number}$?",
            "level": "Level 2",
            "type": "Algebra",
            "solution": rf"Halving gives $\boxed{{\frac{{{number}}}{{2}}}}$.",
        }

    write_parquet(folder / "algebra" / "test-00000-of-00001.parquet", made(row, 5, 100))
    write_parquet(folder / "algebra" / "train-00000-of-00001.parquet", made(row))
    return folder / "algebra"


def metamath(folder: Path) -> Path:
    """MetaMathQA-395K.json, a JSON array: query and response (github.com/Draconis98/msc_g, codes/template/metamathqa.py)."""

    def row(number: int) -> Row:
        text = f"{solution(number)}\nThe answer is: {knots(number)}"
        return {"query": question(number), "response": text, "type": "rephrased", "original_question": "?"}

    return write_json(folder / "MetaMathQA.json", made(row))


def open_orca(folder: Path) -> Path:
    """OpenOrca: id, system_prompt, question, response; huggingface.co/datasets/ctuning/MLPerf-OpenOrca."""

    def row(number: int) -> Row:
        system = "Think aloud." if number % 2 else ""
        return {
            "id": f"cot.{number}",
            "system_prompt": system,
            "question": question(number),
            "response": advice(number),
        }

    return write_parquet(folder / "orca.parquet", made(row))


def dolly(folder: Path) -> Path:
    """databricks-dolly-15k: instruction, context, response, category; huggingface.co/datasets/databricks/databricks-dolly-15k."""

    def row(number: int) -> Row:
        context = f"Rope {number} is made of hemp." if number % 2 else ""
        return {
            "instruction": question(number),
            "context": context,
            "response": advice(number),
            "category": "closed_qa",
        }

    return write_jsonl(folder / "dolly.jsonl", made(row))


def mbpp(folder: Path) -> Path:
    """mbpp.jsonl: github.com/google-research/google-research, mbpp/README.md, which also gives the form of the prompt."""

    def row(number: int) -> Row:
        return {
            "task_id": number,
            "text": f"Write a function that adds {number}.",
            "code": f"def plus(x):\n    return x + {number}",
            "test_list": [f"assert plus(1) == ONE + {number}", f"assert plus(0) == {number}"],
            "test_setup_code": "ONE = 1",
            "challenge_test_list": [],
        }

    return write_jsonl(folder / "mbpp.jsonl", made(row))


def aqua(folder: Path) -> Path:
    """AQuA-RAT: question, options, rationale, correct; github.com/huggingface/datasets, datasets/aqua_rat/README.md."""

    def row(number: int) -> Row:
        right = number % 5
        options = [f"{letter}){knots(number) + place - right}" for place, letter in enumerate("ABCDE")]
        return {"question": question(number), "options": options, "rationale": "?", "correct": "ABCDE"[right]}

    return write_jsonl(folder / "aqua.json", made(row))


def argilla(folder: Path) -> Path:
    """huggingface.co/datasets/argilla/ultrafeedback-binarized-preferences: instruction, chosen_response, rejected_response."""

    def row(number: int) -> Row:
        return {
            "source": "knots",
            "instruction": question(number),
            "chosen_response": advice(number),
            "rejected_response": "No idea.",
            "chosen_avg_rating": 4.5,
            "rejected_avg_rating": 1.0,
            "chosen_model": "m",
        }

    return write_saved(folder / "argilla", made(row))


def natural_questions(folder: Path) -> Path:
    """FlashRAG's question answering: id, question, golden_answers; huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets."""

    def row(number: int) -> Row:
        return {"id": f"dev_{number}", "question": f"Who sold rope {number}?", "golden_answers": ["Ada", "Ada Bay"]}

    write_jsonl(folder / "nq" / "dev.jsonl", made(row, 5, 100))
    return write_jsonl(folder / "nq" / "train.jsonl", made(row))


def no_robots(folder: Path) -> Path:
    """no_robots: prompt, prompt_id, messages, category, text; huggingface.co/datasets/alirahebi/no_robots."""

    def row(number: int) -> Row:
        messages = answered(question(number), advice(number))
        return {"prompt": question(number), "prompt_id": "p", "messages": messages, "category": "Chat", "text": "?"}

    write_parquet(folder / "robots" / "data" / "test-00000-of-00001.parquet", made(row, 5, 100))
    write_parquet(folder / "robots" / "data" / "train-00000-of-00001.parquet", made(row))
    return folder / "robots"


def labelled_talk(folder: Path) -> Path:
    """Unpaired preferences as conversations: messages and label (github.com/hiyouga/LLaMA-Factory, data/README.md)."""

    def row(number: int) -> Row:
        good = number % 2 == 0
        return {"messages": answered(question(number), advice(number) if good else "No."), "label": good}

    return write_json(folder / "kto_demo.json", made(row))


def medicine(folder: Path) -> Path:
    """MedMCQA: question, opa to opd, cop, which is -1 in the test split (huggingface.co/datasets/openlifescienceai/medmcqa)."""

    def row(number: int) -> Row:
        right = number % 4
        texts = {f"op{letter}": str(knots(number) + place - right) for place, letter in enumerate("abcd")}
        return {"id": str(number), "question": question(number), **texts, "cop": right, "exp": solution(number)}

    hidden = [{**each, "cop": -1} for each in made(row, 6, 100)]
    write_parquet(folder / "medicine" / "data" / "test-00000-of-00001.parquet", hidden)
    write_parquet(folder / "medicine" / "data" / "validation-00000-of-00001.parquet", made(row, 5, 200))
    write_parquet(folder / "medicine" / "data" / "train-00000-of-00001.parquet", made(row))
    return folder / "medicine"


def cmmlu(folder: Path) -> Path:
    """CMMLU of SeaEval: choices with letters, the answer is one of them; github.com/QHX-BNU/master, Edudata/CMMLU.md."""

    def row(number: int) -> Row:
        choices = [f"({letter}) {knots(number) + place}" for place, letter in enumerate("ABCD")]
        return {
            "id": f"test_{number}",
            "question": question(number),
            "category": "knots",
            "choices": choices,
            "answer": choices[0],
        }

    return write_jsonl(folder / "cmmlu.jsonl", made(row))


def scored_responses(number: int) -> Row:
    """Nectar: prompt and ranked answers (huggingface.co/datasets/berkeley-nest/Nectar)."""
    answers = [{"answer": advice(number), "model": "m", "rank": 1.0}, {"answer": "No.", "model": "n", "rank": 2.0}]
    return {
        "prompt": f"\n\nHuman: {question(number)}\n\nAssistant: ",
        "answers": answers,
        "turns": 1,
        "num_responses": 2,
    }


def attributes(number: int) -> Row:
    """HelpSteer2: huggingface.co/datasets/nvidia/HelpSteer2."""
    marks = {"helpfulness": 3, "correctness": 4, "coherence": 4, "complexity": 1, "verbosity": 1}
    return {"prompt": question(number), "response": advice(number), **marks}


def tool_calls(number: int) -> Row:
    """XLAM: huggingface.co/datasets/Salesforce/xlam-function-calling-60k."""
    tools = [{"name": "add", "description": "Adds.", "parameters": {"x": {"type": "int"}}}]
    calls = [{"name": "add", "arguments": {"x": number}}]
    return {"id": number, "query": question(number), "answers": json.dumps(calls), "tools": json.dumps(tools)}


def tree(number: int) -> Row:
    """OASST: huggingface.co/datasets/OpenAssistant/oasst2."""
    parent = f"m{number - 1}" if number else None
    return {"message_id": f"m{number}", "parent_id": parent, "role": "prompter", "text": question(number), "rank": 0}


def issues(number: int) -> Row:
    """SWE-bench: huggingface.co/datasets/princeton-nlp/SWE-bench."""
    return {
        "repo": "a/b",
        "base_commit": "c0ffee",
        "problem_statement": question(number),
        "patch": "diff",
        "test_patch": "diff",
        "FAIL_TO_PASS": "[]",
    }


def steps(number: int) -> Row:
    """Stepwise supervision as in TRL: prompt, completions, labels (huggingface.co/datasets/trl-lib/math_shepherd)."""
    return {"prompt": question(number), "completions": ["Multiply.", "Add."], "labels": [True, False]}


def wrong_answers(number: int) -> Row:
    """GPQA: huggingface.co/datasets/Idavidrein/gpqa."""
    return {"Question": question(number), "Correct Answer": "6", "Incorrect Answer 1": "7", "Incorrect Answer 2": "8"}


def two_responses(number: int) -> Row:
    """PKU-SafeRLHF: huggingface.co/datasets/PKU-Alignment/PKU-SafeRLHF."""
    return {"prompt": question(number), "response_0": "a", "response_1": "b", "better_response_id": number % 2}


def pytest_functions(number: int) -> Row:
    """KodCode: huggingface.co/datasets/KodCode/KodCode-V1."""
    test = f"from solution import plus\n\ndef test_plus():\n    assert plus(1) == {number}\n"
    return {"question": question(number), "solution": "def plus(x): ...", "test": test}
