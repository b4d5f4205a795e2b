"""Trains a run with TRL's GRPOTrainer: `build/peers/bin/python -P trl_run.py REQUEST ANSWER`; `benchmarks.peer_run` runs it.

It also runs as several processes of torch's launcher, of which the first one answers.

Consumes a JSON file, as `theirs.request_of` writes it. Produces a JSON file: when the first iteration began and the last one
ended (seconds since 1970), the moments and values of the held-out accuracy, the seconds by part over all iterations, and the
libraries' versions. Runs in the environment of the peers, which has no YATT.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

GENERATE = "generate"
UPDATE = "update"
REWARDS = "rewards"
EVALUATE = "evaluate"
CHECKPOINT = "checkpoint"
DATA = "data"
OTHER = "other"
LIBRARIES = ("trl", "torch", "transformers", "accelerate")


class Clock:
    """Seconds by part. What a part spends in another one within it counts for that one only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0

    def begin(self, part: str) -> None:
        """Begins a part, within the one that is open."""
        self._charge()
        self._open.append(part)

    def end(self) -> None:
        """Ends the open part."""
        self._charge()
        self._open.pop()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts what is within it."""
        self.begin(name)
        try:
            yield
        finally:
            self.end()

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer, whose methods say what they spend their time on."""

    clock: Clock

    def _prepare_inputs(self, *arguments: Any, **named: Any) -> Any:
        with self.clock.part(DATA):
            return super()._prepare_inputs(*arguments, **named)

    def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
        with self.clock.part(GENERATE):
            return super()._generate_single_turn(*arguments, **named)

    def _calculate_rewards(self, *arguments: Any, **named: Any) -> Any:
        with self.clock.part(REWARDS):
            return super()._calculate_rewards(*arguments, **named)

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        """Generates, and computes the gradients."""
        with self.clock.part(UPDATE):
            return super().training_step(*arguments, **named)

    def _clip_grad_norm(self, *arguments: Any, **named: Any) -> Any:
        with self.clock.part(UPDATE):
            return super()._clip_grad_norm(*arguments, **named)

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> Any:
        with self.clock.part(CHECKPOINT):
            return super()._save_checkpoint(*arguments, **named)


class Evaluation(TrainerCallback):  # type: ignore[misc]
    """Measures the accuracy of greedy answers to the held-out tasks, as often as our run does.

    accuracies: each with its moment, in seconds since 1970.
    begin, end: moments of the first and the last iteration.
    """

    def __init__(self, request: dict[str, Any], model: Any, tokenizer: Any, clock: Clock) -> None:
        self.accuracies: list[tuple[float, float]] = []
        self.begin = 0.0
        self.end = 0.0
        self._request = request
        self._model = model
        self._tokenizer = tokenizer
        self._clock = clock

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Measures the start; what follows is iterations."""
        self._measure()
        self.begin = time.time()
        self._clock.begin(OTHER)

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        """Measures an iteration."""
        every = self._request["evaluate_every"]
        if state.global_step == self._request["iterations"] or (every and state.global_step % every == 0):
            with self._clock.part(EVALUATE):
                self._measure()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Ends the last iteration."""
        self._clock.end()
        self.end = time.time()

    def _measure(self) -> None:
        rows = self._request["held_out"]
        texts = [row["prompt"] for row in rows]
        encoded = self._tokenizer(
            texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt"
        )
        self._model.eval()
        with torch.inference_mode():
            tokens = self._model.generate(
                input_ids=encoded["input_ids"],
                attention_mask=encoded["attention_mask"],
                do_sample=False,
                max_new_tokens=self._request["response"],
                eos_token_id=self._tokenizer.eos_token_id,
                pad_token_id=self._tokenizer.pad_token_id,
            )
        self._model.train()
        replies = self._tokenizer.batch_decode(tokens[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
        right = exact(replies, [row["answer"] for row in rows])
        self.accuracies.append((time.time(), sum(right) / len(right)))


def exact(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """Returns 1 for each right completion, and 0 for the others: the value of the task's own score if it has to be exact."""
    return [
        float(completion.strip().lower() == right.lower())
        for completion, right in zip(completions, answer, strict=True)
    ]


def settings(request: dict[str, Any]) -> Any:
    """Returns the settings of a run as ours: one optimizer step on all samples of an iteration, without a KL penalty."""
    return GRPOConfig(
        output_dir=request["output"],
        use_cpu=True,
        bf16=False,
        seed=request["seed"],
        max_steps=request["iterations"],
        per_device_train_batch_size=request["prompts_per_iteration"] * request["samples"] // request["processes"],
        gradient_accumulation_steps=1,
        num_generations=request["samples"],
        max_completion_length=request["response"],
        temperature=request["temperature"],
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="dapo",
        scale_rewards="group",
        max_grad_norm=request["max_grad_norm"],
        shuffle_dataset=False,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="steps",
        save_steps=request["checkpoint_every"],
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def optimizer_of(request: dict[str, Any], model: Any, clock: Clock) -> tuple[Any, Any]:
    """Returns the optimizer, which says when it works, and its schedule."""
    rates = request["rates"]
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1.0,
        betas=tuple(request["betas"]),
        eps=request["epsilon"],
        weight_decay=request["weight_decay"],
        fused=True,
    )
    optimizer.register_step_pre_hook(lambda *_: clock.begin(UPDATE))
    optimizer.register_step_post_hook(lambda *_: clock.end())
    # The schedule is asked once more after the last step.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[min(step, len(rates) - 1)])
    return optimizer, schedule


def check_tokens(request: dict[str, Any], tokenizer: Any) -> None:
    """Raises `ValueError` if a prompt has other tokens here than in our run."""
    rows = [*request["train"], *request["held_out"]]
    encoded = tokenizer([row["prompt"] for row in rows], add_special_tokens=False)["input_ids"]
    for row, tokens in zip(rows, encoded, strict=True):
        if tokens != row["tokens"]:
            raise ValueError(f"the prompt {row['prompt']!r} has the tokens {tokens}, and ours {row['tokens']}")


def main() -> None:
    """Trains the run."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(request["threads"])
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=torch.float32, local_files_only=True)
    # transformers' AutoTokenizer takes another class for this kind of model, with other tokens.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(request["model"], local_files_only=True)
    clock = Clock()
    evaluation = Evaluation(request, model, tokenizer, clock)
    trainer = TimedTrainer(
        model=model,
        reward_funcs=exact,
        args=settings(request),
        train_dataset=Dataset.from_list([{key: row[key] for key in ("prompt", "answer")} for row in request["train"]]),
        processing_class=tokenizer,
        callbacks=[evaluation],
        optimizers=optimizer_of(request, model, clock),
    )
    trainer.clock = clock
    trainer.train()
    answer = {
        "begin": evaluation.begin,
        "end": evaluation.end,
        "accuracies": evaluation.accuracies,
        "seconds": clock.seconds,
        "versions": {name: version(name) for name in LIBRARIES},
    }
    if trainer.is_world_process_zero():
        check_tokens(request, tokenizer)
        Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
