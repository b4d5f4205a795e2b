"""Takes GRPO steps with TRL: `build/peers/bin/python -P benchmarks/trl_step.py REQUEST ANSWER`; `benchmarks.step` runs it.

Consumes a JSON file: `model` (a folder), `bfloat16`, `prompts` (tokens), `samples`, `response` (tokens of each), `micro_batch`
(samples), `steps`, and `seed`. Produces a JSON file: the CPU seconds of each step. Runs in the environment of the peers, which
has no YATT, with one thread; as TRL does by default, weights are float32, and bfloat16 is autocast.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class StepTimes(TrainerCallback):  # type: ignore[misc]
    """Records the CPU seconds of each optimizer step, with its generation."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begins a step."""
        self._began = time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Ends a step."""
        self.seconds.append(time.process_time() - self._began)


def words(vocabulary: int) -> Any:
    """Returns a tokenizer with a word for each token; the last one ends responses and pads."""
    names = {f"w{number}": number for number in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    last = f"w{vocabulary - 1}"
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=last, pad_token=last, unk_token="w0")


def spread(completions: list[str], **_: Any) -> list[float]:
    """Returns different rewards for different responses, so that every sample has a gradient."""
    return [sum(map(ord, completion)) % 97 / 97 for completion in completions]


def settings(request: dict[str, Any], folder: str) -> Any:
    """Returns the settings of steps that do the work of `benchmarks.step`."""
    samples = len(request["prompts"]) * request["samples"]
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=request["bfloat16"],
        seed=request["seed"],
        max_steps=request["steps"],
        per_device_train_batch_size=request["micro_batch"],
        gradient_accumulation_steps=samples // request["micro_batch"],
        num_generations=request["samples"],
        max_completion_length=request["response"],
        generation_kwargs={"min_new_tokens": request["response"]},
        learning_rate=1e-4,
        beta=0.0,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def main() -> None:
    """Takes the steps."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32, local_files_only=True)
    texts = [" ".join(f"w{token}" for token in prompt) for prompt in request["prompts"]]
    times = StepTimes()
    with tempfile.TemporaryDirectory(prefix="trl-step") as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=spread,
            args=settings(request, folder),
            train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
            processing_class=words(model.config.vocab_size),
            callbacks=[times],
        )
        trainer.train()
    Path(sys.argv[2]).write_text(json.dumps(times.seconds), encoding="utf-8")


if __name__ == "__main__":
    main()
