#!/usr/bin/env bash
# TRL 1.16.0, with the chat templates of its own wheel: whether the thoughts of an answer are learnt depends on the form of the row.
# Seen: DeepSeek R1's template drops "<think>two and two</think>" from rows of prompt and completion, without a warning; the same
# row as messages (assistant_only_loss) is rendered by a training template that keeps them. gpt-oss' template keeps the tags as
# plain text in the final channel in both forms, and no analysis channel is learnt.
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
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import SFTTrainer
from trl.chat_template_utils import get_training_chat_template

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
ANSWER = {"role": "assistant", "content": "<think>\ntwo and two\n</think>\n\n4"}
QUESTION = {"role": "user", "content": "2 + 2?"}


def learnt(family, row, only_assistant):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8")
    template = get_training_chat_template(tokenizer) if only_assistant else None
    trainer = SimpleNamespace(_tokenizer=tokenizer, chat_template=template, completion_only_loss=not only_assistant)
    settings = SimpleNamespace(
        dataset_num_proc=None, dataset_text_field="text", assistant_only_loss=only_assistant, max_length=None,
        shuffle_dataset=False,
    )
    (made,) = SFTTrainer._prepare_dataset(trainer, Dataset.from_list([row]), tokenizer, settings, False, None, "train")
    kept = [token for token, label in zip(made["input_ids"], made["labels"]) if label != -100]
    return tokenizer.decode(kept)


pair = {"prompt": [QUESTION], "completion": [ANSWER]}
messages = {"messages": [QUESTION, ANSWER]}
seen = {
    ("deepseek_r1_distill", "prompt and completion"): learnt("deepseek_r1_distill", pair, False),
    ("deepseek_r1_distill", "messages"): learnt("deepseek_r1_distill", messages, True),
    ("gptoss", "prompt and completion"): learnt("gptoss", pair, False),
    ("gptoss", "messages"): learnt("gptoss", messages, True),
}
for (family, form), text in seen.items():
    print(f"{family}, {form}: {text!r}")
r1 = "two and two" not in seen["deepseek_r1_distill", "prompt and completion"]
r1 = r1 and "two and two" in seen["deepseek_r1_distill", "messages"]
oss = all("<think>" in text and "analysis" not in text for (family, _), text in seen.items() if family == "gptoss")
sys.exit(0 if r1 and oss else 1)
PY
"$folder/env/bin/python" "$folder/see.py" 2>/dev/null
