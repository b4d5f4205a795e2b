"""How long does `yatt check` take on large files, and how much memory?

Consumes nothing, or numbers of rows, or the path of a model folder. Writes rows of about 1 KB of text with short answers, rows of
programs with tests over standard input, and by default a small model folder with a byte-level tokenizer without merges, the
slowest to encode with. Runs `yatt check` in processes of its own: once on the first file, twice on the second.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import Report, argument_parser, load_average, print_report, progress

ROWS = 100_000
PROGRAMS = 20_000
SEED = 0
LEAST_CHARACTERS = 600
MOST_CHARACTERS = 950
POSITIONS = 1024
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPEC = """
name: speed
model: {{kind: folder, path: {model}}}
data:
  sources: [{{kind: jsonl, path: rows.jsonl, prompt_field: question, answer_field: answer}}]
  max_prompt_tokens: 1000
rollout: {{max_new_tokens: 24}}
rewards: {{parts: [{{name: correct, function: {function}}}]}}
"""


class Checked(NamedTuple):
    """A run of `yatt check`.

    found: what it says, as with `-o json`.
    silent: seconds until its first line on standard error, where its progress is; `seconds` if it wrote none.
    """

    found: dict[str, Any]
    seconds: float
    silent: float


def write_rows(path: Path, count: int) -> None:
    """Writes the rows: random words, and an answer of two words."""
    chance = random.Random(SEED)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(3000)]
    with path.open("w", encoding="utf-8") as stream:
        for number in range(count):
            size = chance.randint(LEAST_CHARACTERS, MOST_CHARACTERS)
            text = " ".join(chance.choices(words, k=size // 5))[:size]
            answer = f"{chance.randint(0, 9999)} {chance.choice(words)}"
            stream.write(json.dumps({"question": f"{number}: {text}", "answer": answer}) + "\n")


def write_model(folder: Path) -> Path:
    """Writes the model folder and returns it."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(SEED)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def write_programs(path: Path, count: int) -> None:
    """Writes the rows of programs: each has two tests, which an empty program fails."""
    with path.open("w", encoding="utf-8") as stream:
        for number in range(count):
            tests = {"inputs": [f"{number}\n", "4\n"], "outputs": [f"{2 * number}\n", f"{number + 4}\n"]}
            question = f"Read a number and print its sum with {number}."
            stream.write(json.dumps({"question": question, "tests": tests}) + "\n")


def check(folder: Path) -> Checked:
    """Runs `yatt check` on the spec of the folder."""
    command = [sys.executable, "-m", "ops.cli.main", "--home", "runs", "check", "spec.yaml", "-o", "json"]
    started = time.perf_counter()
    silent = None
    with (
        (folder / "answer.json").open("w+", encoding="utf-8") as answer,
        subprocess.Popen(command, cwd=folder, stdout=answer, stderr=subprocess.PIPE, text=True) as process,
    ):
        for line in process.stderr or ():
            silent = silent or time.perf_counter() - started
            sys.stderr.write(line)
        code = process.wait()
        seconds = time.perf_counter() - started
        answer.seek(0)
        text = answer.read()
    if code:
        raise RuntimeError(f"yatt check ended with exit code {code}: {text}")
    return Checked(json.loads(text.splitlines()[-1]), seconds, silent or seconds)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's options."""
    made = argument_parser(__doc__)
    made.add_argument("--rows", type=int, default=ROWS, help=f"number of rows of text; default: {ROWS}")
    made.add_argument("--programs", type=int, default=PROGRAMS, help=f"number of rows of programs; default: {PROGRAMS}")
    made.add_argument("--model", type=Path, help="a model folder; default: a small one made here")
    return made


def main() -> None:
    """Writes the files, checks them, and reports time and memory."""
    arguments = parser().parse_args()
    load = load_average()
    with tempfile.TemporaryDirectory(prefix="check-") as place:
        texts = Path(place, "texts")
        programs = Path(place, "programs")
        texts.mkdir()
        programs.mkdir()
        progress("writing the rows")
        write_rows(texts / "rows.jsonl", arguments.rows)
        write_programs(programs / "rows.jsonl", arguments.programs)
        model = write_model(Path(place, "model")) if arguments.model is None else arguments.model.resolve()
        for folder, function in ((texts, "exact_match"), (programs, "code_tests, options: {tests: tests}")):
            spec = SPEC.format(model=model, function=function)
            (folder / "spec.yaml").write_text(spec, encoding="utf-8")
        progress(f"checking {arguments.rows:,} rows of text")
        text = check(texts)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        progress(f"checking {arguments.programs:,} rows of programs")
        first = check(programs)
        progress("and again")
        again = check(programs)
        size = (texts / "rows.jsonl").stat().st_size
    figures = {
        "seconds": text.seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "largest_process_mb": used.ru_maxrss / 1024,
        "rows": float(sum(text.found["prompts"].values())),
        "file_mb": size / 1e6,
        "longest_prompt_tokens": float(text.found["longest_prompt"]["tokens"]),
        "programs": float(sum(first.found["prompts"].values())),
        "seconds_programs": first.seconds,
        "seconds_to_progress": first.silent,
        "seconds_programs_again": again.seconds,
    }
    print_report(Report("check", figures, [SEED], [load, load_average()]), arguments.json)


if __name__ == "__main__":
    main()
