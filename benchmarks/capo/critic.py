"""Trains a small judge that names the wrong steps of responses to `running_sums`, on responses labelled by the rule.

Consumes the spec whose part the judge is. Produces its model's folder. The responses are made by seed: right chains in
which lines are replaced by other numbers, while later lines follow from what is written. Before its list, the judge writes
what each line should have been and what it is, which it learns line by line.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import AddedToken

from yatt_core.engines.train.model.forward import PolicyForward
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.supervised import SupervisedStep, demonstrations_of, sft_learning_rate
from yatt_core.judges.codec import open_judge_codec
from yatt_core.keys import stable_seed
from yatt_core.models.loading import load_causal_lm
from yatt_core.models.model_folder import make_model
from yatt_core.models.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.steps import split_steps
from yatt_core.protocols.judges import JudgeItem
from yatt_core.rewards.builtin import running_sums_steps
from yatt_core.spec.rewards.judges import GenerativePart
from yatt_core.spec.rewards.steps import Lines
from yatt_core.spec.sections.model import ModelFromConfig, SftSpec
from yatt_core.spec.sections.trainer import AdamWSpec

NETWORK = ModelFromConfig(
    hidden_size=64, layers=3, heads=4, key_value_heads=4, intermediate_size=172, max_positions=128
)
TRAINING = SftSpec(batch_size=64, max_steps=3000, learning_rate=1.5e-3, lr_warmup_steps=50, min_lr_ratio=0.05)
WRONG_FRACTIONS = (0.0, 0.2, 1.0, 1.0, 1.0, 1.0)
"""How likely a line is replaced; each response draws one of these. If few lines were, a judge that repeats what is
written would be right so often that it would learn nothing else."""
ODD_FRACTION = 0.01
"""Fraction of the lines that are no number, or missing."""
MICRO_BATCH_TOKENS = 8192


def demonstration(random: Random, prompt: Prompt) -> tuple[str, str]:
    """Returns a response with wrong lines, and the critique that it deserves."""
    numbers = prompt.entry["metadata"]["numbers"]
    modulus = prompt.entry["metadata"]["modulus"]
    fraction = WRONG_FRACTIONS[int(random.random() * len(WRONG_FRACTIONS))]
    before = 0
    lines = list[str]()
    for number in numbers:
        follows = (before + number) % modulus
        before = int(random.random() * modulus) if random.random() < fraction else follows
        odd = random.random() < ODD_FRACTION
        lines += [str(before)] if not odd else [str(before) * 2] if random.random() < 0.5 else []
    response = "\n".join(lines)
    return response, critique_of(prompt, response)


def critique_of(prompt: Prompt, response: str) -> str:
    """Returns the critique that the rule would write: what each line should be and is, and the numbers of the wrong ones.

    Each expected sum follows the line from which it is computed, so that the judge need not look for it.
    """
    metadata = prompt.entry["metadata"]
    steps = split_steps(response, Lines())
    wrong = running_sums_steps(prompt, steps)
    before = 0
    pairs = list[str]()
    for step, number in zip(steps, metadata["numbers"], strict=False):
        due = (before + number) % metadata["modulus"]
        text = step.strip()
        pairs.append(f"{due}{text}")
        before = int(text) if text.isdecimal() else due
    return f"{''.join(pairs)} {[place for place, is_wrong in enumerate(wrong, start=1) if is_wrong]}"


def train_critic(
    part: GenerativePart, prompts: Sequence[Prompt], folder: Path, seed: int, report: Callable[[int, float], None]
) -> None:
    """Writes a new folder with the trained judge of a part.

    report: receives the step and its loss every hundred steps.
    """
    steps = len(prompts[0].entry["metadata"]["numbers"]) + 1
    marks = [f"[{number}] " for number in range(1, steps + 1)]
    texts = [prompt.text for prompt in prompts]
    tokenizer = train_tokenizer(NETWORK.tokenizer, texts, ["0123456789[], \n"])
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False) for text in (marks[0], *(f"\n{mark}" for mark in marks[1:]))]
    )
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary) / folder.name
        made.mkdir()
        save_tokenizer(tokenizer, made, NETWORK.max_positions)
        make_model(NETWORK, tokenizer.get_vocab_size(), stable_seed("critic", seed), made)
        model = load_causal_lm(str(made), "float32").train()
        codec = open_judge_codec(str(made), part.template, part.max_new_tokens)
        words = load_tokenizer(made)
        step = SupervisedStep(
            PolicyForward(model, 1.0, "float32"), FlatAdamW(model, AdamWSpec()), Collective(), MICRO_BATCH_TOKENS
        )
        rows = np.arange(TRAINING.batch_size, dtype=np.int64)
        for number in range(1, TRAINING.max_steps + 1):
            items = list[JudgeItem]()
            answers = list[str]()
            for row in rows.tolist():
                random = Random(stable_seed("critic_batch", seed, number, row))
                prompt = prompts[int(random.random() * len(prompts))]
                response, critique = demonstration(random, prompt)
                items.append(
                    JudgeItem(
                        number=row,
                        prompt=prompt.text,
                        response=response,
                        answer=None,
                        seeds=(0,),
                        steps=split_steps(response, Lines()),
                    )
                )
                answers.append(critique)
            questions = [question for question in codec.encode(items) if not isinstance(question, str)]
            learned = [
                np.array([*words(text, add_special_tokens=False)["input_ids"], words.eos_token_id], np.int32)
                for text in answers
            ]
            batch = demonstrations_of(questions, learned, [np.ones(len(tokens), np.bool_) for tokens in learned])
            loss = step.take(batch, rows, sft_learning_rate(TRAINING, number))
            if number % 100 == 0:
                report(number, float(loss))
        model.save_pretrained(made)  # type: ignore[operator]
        made.rename(folder)
