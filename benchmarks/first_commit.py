"""How long does it take from a data file and a model folder to the first committed iteration?

Consumes nothing, or the paths of a model folder and of data files. Writes four files in shapes of the field and a small model
folder by default. For each file, in an empty folder, it runs `yatt init` and `yatt train` as they are, in processes of their own,
and for comparison the quickstart; the ledger says when iteration 1 was committed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.check import write_model
from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from db.ledger import Ledger

ROWS = 64
TEST_ROWS = 16
QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
LONGEST = 1.2
"""Time to the first commit over the quickstart's."""


def _ask(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What is {number} plus {number + 1}?"}]


def _reply(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _verl(number: int) -> dict[str, Any]:
    return {
        "data_source": "sums",
        "prompt": _ask(number),
        "reward_model": {"style": "rule", "ground_truth": str(2 * number + 1)},
        "extra_info": {"index": number, "answer": f"It is {number} + {number + 1}.\n#### {2 * number + 1}"},
    }


def _preference(number: int) -> dict[str, Any]:
    return {
        "chosen": [*_ask(number), _reply(f"It is {2 * number + 1}.")],
        "rejected": [*_ask(number), _reply(f"It is {number}.")],
    }


def _dialogue(number: int) -> dict[str, Any]:
    turns = [
        ("human", f"Name a number above {number}."),
        ("gpt", f"{number + 1}."),
        ("human", "And one below?"),
        ("gpt", f"{number - 1}."),
    ]
    return {"id": f"c{number}", "conversations": [{"from": who, "value": text} for who, text in turns]}


def _program(number: int) -> dict[str, Any]:
    tests = {"inputs": [f"{number}\n", "4\n"], "outputs": [f"{2 * number}\n", f"{number + 4}\n"]}
    return {
        "problem_id": number,
        "question": f"Read a number and print its sum with {number}.",
        "input_output": json.dumps(tests),
        "difficulty": "interview",
        "starter_code": "",
    }


def _write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)


def _write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _write_json(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text(json.dumps(rows), encoding="utf-8")


SHAPES: dict[str, tuple[str, Callable[[int], dict[str, Any]], Callable[[Path, Sequence[dict[str, Any]]], None]]] = {
    "verl": ("train.parquet", _verl, _write_parquet),
    "preferences": ("preferences.jsonl", _preference, _write_jsonl),
    "sharegpt": ("sharegpt.json", _dialogue, _write_json),
    "code": ("programs.jsonl", _program, _write_jsonl),
}
"""Name of a shape to the file's name, what makes a row of a number, and what writes the rows."""


def write_files(folder: Path) -> dict[str, Path]:
    """Writes a file in each shape, each in a folder of its own; returns them by the shape's name."""
    written = {}
    for shape, (name, row, write) in SHAPES.items():
        place = folder / shape
        place.mkdir()
        write(place / name, [row(number) for number in range(1, ROWS + 1)])
        if shape == "verl":
            write(place / "test.parquet", [row(number) for number in range(1000, 1000 + TEST_ROWS)])
        written[shape] = place / name
    return written


def _yatt(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "ops.cli.main", "--home", str(folder / "runs"), *arguments]
    subprocess.run(command, cwd=folder, stdout=sys.stderr, check=True)


def _first_commit(folder: Path) -> float:
    """Returns when iteration 1 of the only run of the home was committed, in seconds since 1970."""
    with closing(Ledger.open(folder / "runs" / "ledger.db")) as ledger:
        [line] = ledger.overview.runs()
        [moment] = [row.committed_at for row in ledger.audit.commits(line.run.id) if row.iteration == 1]
    return moment / 1000


def seconds_of_file(folder: Path, data: Path, model: Path) -> float:
    """Returns the seconds from the first of the two commands to the first commit."""
    started = time.time()
    _yatt(folder, "init", "--data", str(data), "--model", str(model))
    [spec] = folder.glob("*.yaml")
    _yatt(folder, "train", spec.name, "--until", "1")
    return _first_commit(folder) - started


def seconds_of_quickstart(folder: Path) -> float:
    """Returns the seconds from the command to the first commit."""
    started = time.time()
    _yatt(folder, "train", str(QUICKSTART), "--until", "1")
    return _first_commit(folder) - started


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's options."""
    made = argument_parser(__doc__)
    made.add_argument("--model", type=Path, help="a model folder; default: a small one made here")
    made.add_argument("--data", type=Path, nargs="+", help="data files; default: four made here, each of another shape")
    return made


def main() -> None:
    """Takes the times of the files and of the quickstart, and reports them."""
    arguments = parser().parse_args()
    load = load_average()
    with tempfile.TemporaryDirectory(prefix="first-commit-") as place:
        folder = Path(place)
        model = write_model(folder / "model") if arguments.model is None else arguments.model.resolve()
        if arguments.data is None:
            files = write_files(folder)
        else:
            files = {f"{path.parent.name}_{path.stem}": path.resolve() for path in arguments.data}
        times = {}
        for name, data in files.items():
            progress(f"{name}: init, then train to the first commit")
            empty = folder / f"of-{name}"
            empty.mkdir()
            times[name] = seconds_of_file(empty, data, model)
        progress("the quickstart")
        empty = folder / "of-quickstart"
        empty.mkdir()
        quickstart = seconds_of_quickstart(empty)
    figures = {f"seconds_{name}": seconds for name, seconds in times.items()}
    figures["worst_over_quickstart"] = max(times.values()) / quickstart
    baselines = {"seconds_quickstart": quickstart, "longest_over_quickstart": LONGEST}
    print_report(
        Report(name="first_commit", figures=figures, seeds=[0], load=[load, load_average()], baselines=baselines),
        arguments.json,
    )


if __name__ == "__main__":
    main()
