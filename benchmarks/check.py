"""How long does `yatt check` take on a large file, and how much memory?

Consumes nothing, or the number of rows, or the path of a model folder. Writes rows of about 1 KB of text with short answers, and
by default a small model folder with a byte-level tokenizer without merges, the slowest to encode with. Runs `yatt check` in a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import Report, argument_parser, load_average, print_report, progress

ROWS, SEED = 100_000, 0
LEAST_CHARACTERS, MOST_CHARACTERS = 600, 950
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
rewards: {{parts: [{{name: exact, function: exact_match}}]}}
"""


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


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's options."""
    made = argument_parser(__doc__)
    made.add_argument("--rows", type=int, default=ROWS, help=f"number of rows; default: {ROWS}")
    made.add_argument("--model", type=Path, help="a model folder; default: a small one made here")
    return made


def main() -> None:
    """Writes the files, checks them, and reports time and memory."""
    arguments = parser().parse_args()
    load = load_average()
    with tempfile.TemporaryDirectory(prefix="check-") as place:
        folder = Path(place)
        progress(f"writing {arguments.rows:,} rows")
        write_rows(folder / "rows.jsonl", arguments.rows)
        model = write_model(folder / "model") if arguments.model is None else arguments.model.resolve()
        (folder / "spec.yaml").write_text(SPEC.format(model=model), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "ops.cli.main",
            "--home",
            str(folder / "runs"),
            "check",
            str(folder / "spec.yaml"),
        ]
        progress("checking them")
        started = time.perf_counter()
        answer = subprocess.run([*command, "-o", "json"], env=os.environ, stdout=subprocess.PIPE, text=True, check=True)
        seconds = time.perf_counter() - started
        size = (folder / "rows.jsonl").stat().st_size
    found = json.loads(answer.stdout.splitlines()[-1])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = {
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "largest_process_mb": used.ru_maxrss / 1024,
        "rows": float(sum(found["prompts"].values())),
        "file_mb": size / 1e6,
        "longest_prompt_tokens": float(found["longest_prompt"]["tokens"]),
    }
    print_report(Report("check", figures, [SEED], [load, load_average()]), arguments.json)


if __name__ == "__main__":
    main()
