#!/usr/bin/env bash
# TRL 1.16.0 with transformers 5.24.0: RewardTrainer ends each text with the end token, and where the tokenizer has no padding
# token, pads with the end token. The classifier reads its score at the last token that is not padding, whatever the attention
# mask says: at the one before the end. So the end that was added is never read, in training or after it: an answer that stops and
# one that was cut off at the same place have the same reward bit for bit, and pairs that differ in it alone teach nothing:
# accuracy 0, loss log 2, gradient 0 but for rounding. With a padding token of its own, the same rows are learnt. There is no
# message.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 trl==1.16.0 transformers==5.24.0 accelerate==1.15.0 datasets==5.2.0
cat > "$folder/see.py" <<'PY'
import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForSequenceClassification
from trl import RewardConfig, RewardTrainer

words = ["<pad>", "<eos>", "<unk>", "a", "b", "c", "d", "e", "f"]
finished = [[3, 4, 5, 6, 1], [3, 4, 7, 8, 1]]
rows = Dataset.from_list([{"chosen_ids": ended, "rejected_ids": ended[:-1]} for ended in finished] * 4)


def train(padding):
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", unk_token="<unk>", **padding)
    torch.manual_seed(0)
    model = Qwen3ForSequenceClassification(Qwen3Config(
        vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, eos_token_id=1, num_labels=1,
    ))
    settings = RewardConfig(
        output_dir=sys.argv[1], per_device_train_batch_size=8, max_steps=20, logging_steps=20, logging_first_step=True,
        report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True, save_strategy="no",
        learning_rate=1e-2,
    )
    trainer = RewardTrainer(model=model, args=settings, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    model.eval()
    with torch.no_grad():
        rewards = [model(input_ids=torch.tensor([ids])).logits.item() for ids in (finished[0], finished[0][:-1])]
    last = [entry for entry in trainer.state.log_history if "loss" in entry][-1]
    return rewards, {name: float(last[name]) for name in ("loss", "accuracy", "grad_norm")}


found = {name: train(padding) for name, padding in (("no padding token", {}), ("a padding token", {"pad_token": "<pad>"}))}
for name, ((whole, cut), last) in found.items():
    shown = {key: round(value, 4) for key, value in last.items()}
    print(f"seen: {name}: the finished answer gets {whole}, the unfinished one {cut}; last step {shown}", file=sys.stderr)
(whole, cut), last = found["no padding token"]
(other_whole, other_cut), other_last = found["a padding token"]
same = whole == cut and last["accuracy"] == 0 and last["grad_norm"] < 1e-5
sys.exit(0 if same and other_whole > other_cut and other_last["accuracy"] == 1 else 1)
PY
HF_HUB_OFFLINE=1 HOME="$folder" "$folder/env/bin/python" "$folder/see.py" "$folder" > "$folder/progress" 2> "$folder/messages" \
    || { cat "$folder/messages"; exit 1; }
grep "^seen:" "$folder/messages"
