#!/usr/bin/env bash
# TRL 1.16.0, with GLM 4.5's chat template of its own wheel: replies of rows of prompt and completion have no token that ends the
# turn, since the template writes the next turn's mark in its place. Rows of messages get one by the training template.
# Seen: 'learnt' ends in "4" for prompt and completion, in "4<|user|>" for messages; DPO and KTO are as prompt and completion.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q "trl==1.16.0" "transformers==5.19.0" "datasets==5.2.0" "accelerate==1.15.0"
cat > "$folder/see.py" <<'PY'
import sys
from pathlib import Path
from types import SimpleNamespace

import trl
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import DPOTrainer, SFTTrainer
from trl.chat_template_utils import get_training_chat_template

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
core = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
core.decoder = decoders.ByteLevel()
marks = ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
core.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>")
template = Path(trl.__file__).parent / "chat_templates" / "glm4moe.jinja"
tokenizer.chat_template = template.read_text(encoding="utf-8")
question = {"role": "user", "content": "2 + 2?"}
answers = [{"role": "assistant", "content": text} for text in ("4", "5")]


def sft(row, only_assistant):
    training = get_training_chat_template(tokenizer) if only_assistant else None
    trainer = SimpleNamespace(_tokenizer=tokenizer, chat_template=training, completion_only_loss=not only_assistant)
    settings = SimpleNamespace(
        dataset_num_proc=None, dataset_text_field="text", assistant_only_loss=only_assistant, max_length=None,
        shuffle_dataset=False,
    )
    (made,) = SFTTrainer._prepare_dataset(trainer, Dataset.from_list([row]), tokenizer, settings, False, None, "train")
    return tokenizer.decode([token for token, label in zip(made["input_ids"], made["labels"]) if label != -100])


def dpo(row):
    settings = SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
    trainer = SimpleNamespace(_tokenizer=tokenizer, _is_vlm=False)
    (made,) = DPOTrainer._prepare_dataset(trainer, Dataset.from_list([row]), tokenizer, settings, "train")
    return tokenizer.decode(made["chosen_ids"])


pair = sft({"prompt": [question], "completion": answers[:1]}, False)
messages = sft({"messages": [question, answers[0]]}, True)
preferred = dpo({"prompt": [question], "chosen": answers[:1], "rejected": answers[1:]})
print("prompt and completion:", repr(pair))
print("messages:             ", repr(messages))
print("preferred response:   ", repr(preferred))
sys.exit(0 if pair.endswith("4") and preferred.endswith("4") and messages.endswith("4<|user|>") else 1)
PY
"$folder/env/bin/python" "$folder/see.py" 2>/dev/null
