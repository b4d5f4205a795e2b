"""Encodes rows with TRL's own trainers: `build/peers/bin/python trl_rows.py REQUEST ANSWER`.

Consumes a JSON file: model folders by name, and rows by kind. Produces a JSON file: for each folder and kind the tokens of each
row and which of them TRL learns. Runs in the environment of the peers, which has no YATT.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import transformers.utils.chat_template_utils as template_utils
from datasets import Dataset
from transformers import PreTrainedTokenizerFast
from trl import DPOTrainer, KTOTrainer, SFTTrainer
from trl.chat_template_utils import get_training_chat_template, has_generation_markers

DATE = "26 Jul 2024"


class FixedDate:
    """Stands for the clock of templates that write the date."""

    @staticmethod
    def now():
        return SimpleNamespace(strftime=lambda form: DATE)


def learnt(labels):
    return [label != -100 for label in labels]


def sft(tokenizer, rows, only_assistant):
    template = None
    if only_assistant and not has_generation_markers(tokenizer.chat_template):
        template = get_training_chat_template(tokenizer)
    trainer = SimpleNamespace(_tokenizer=tokenizer, chat_template=template, completion_only_loss=not only_assistant)
    settings = SimpleNamespace(
        dataset_num_proc=None,
        dataset_text_field="text",
        assistant_only_loss=only_assistant,
        max_length=None,
        shuffle_dataset=False,
    )
    prepared = SFTTrainer._prepare_dataset(trainer, Dataset.from_list(rows), tokenizer, settings, False, None, "train")
    return [{"tokens": row["input_ids"], "learnt": learnt(row["labels"])} for row in prepared]


def behind_prompt(prompt, completion):
    return {"tokens": prompt + completion, "learnt": [False] * len(prompt) + [True] * len(completion)}


def dpo(tokenizer, rows):
    settings = SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
    trainer = SimpleNamespace(_tokenizer=tokenizer, _is_vlm=False)
    prepared = DPOTrainer._prepare_dataset(trainer, Dataset.from_list(rows), tokenizer, settings, "train")
    found = []
    for row in prepared:
        found.append(behind_prompt(row["prompt_ids"], row["chosen_ids"]))
        found.append(behind_prompt(row["prompt_ids"], row["rejected_ids"]))
    return found


def kto(tokenizer, rows):
    settings = SimpleNamespace(
        dataset_num_proc=None, max_length=None, truncation_mode="keep_start", loss_type="apo_zero_unpaired"
    )
    trainer = SimpleNamespace(_tokenizer=tokenizer, calculate_KL=False, _is_vlm=False)
    prepared = KTOTrainer._prepare_dataset(trainer, Dataset.from_list(rows), tokenizer, settings, "train")
    return [behind_prompt(row["prompt_ids"], row["completion_ids"]) for row in prepared]


def main(request, answer):
    template_utils.datetime = FixedDate
    asked = json.loads(Path(request).read_text(encoding="utf-8"))
    found = {}
    for name, folder in asked["folders"].items():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        rows = asked["rows"]
        found[name] = {
            "prompt_completion": sft(tokenizer, rows["prompt_completion"], False),
            "messages": sft(tokenizer, rows["messages"], True),
            "preferences": dpo(tokenizer, rows["preferences"]),
            "unpaired": kto(tokenizer, rows["unpaired"]),
        }
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
