#!/usr/bin/env bash
# TRL 1.16.0: with precompute_ref_log_probs, the log-probabilities of the reference are kept beside the data set, by a digest of
# its rows and of the model. What else they depend on is left out: `ld_alpha`, and `max_length` where truncation_mode is
# "keep_end". A later run, in another process, reads what the first one kept: the policy has rewards and a margin before its first
# step, where they are 0 without precompute_ref_log_probs. There is no message.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 trl==1.16.0 transformers==5.24.0 accelerate==1.15.0 datasets==5.2.0
cat > "$folder/see.py" <<'PY'
import json
import os
import sys

import torch
from datasets import load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import DPOConfig, DPOTrainer

folder, options = sys.argv[1], json.loads(sys.argv[2])
words = ["<pad>", "<eos>", "<unk>", "a", "b", "c", "d", "e", "f", "g"]
core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")
if not os.path.exists(f"{folder}/model"):
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(
        vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, eos_token_id=1, pad_token_id=0,
    )).save_pretrained(f"{folder}/model")
    with open(f"{folder}/rows.json", "w") as file:
        json.dump([{"prompt": "a b c d", "chosen": " c d e f g", "rejected": " e f"}] * 4, file)
rows = load_dataset("json", data_files=f"{folder}/rows.json", split="train")
settings = DPOConfig(
    output_dir=f"{folder}/out", per_device_train_batch_size=4, max_steps=1, logging_steps=1, report_to=[], use_cpu=True,
    bf16=False, gradient_checkpointing=False, disable_tqdm=True, save_strategy="no", learning_rate=1e-6, **options,
)
trainer = DPOTrainer(model=f"{folder}/model", args=settings, train_dataset=rows, processing_class=tokenizer)
trainer.train()
seen = trainer.state.log_history[0]
names = ("loss", "rewards/chosen", "rewards/rejected", "rewards/margins")
with open(f"{folder}/seen.jsonl", "a") as file:
    file.write(json.dumps({name: round(float(seen[name]), 4) for name in names}) + "\n")
PY
run() {
    HF_HUB_OFFLINE=1 HOME="$folder" "$folder/env/bin/python" "$folder/see.py" "$folder" "$1" \
        > "$folder/progress" 2> "$folder/messages" \
        || { cat "$folder/messages"; exit 1; }
    echo "$1: $(tail -n 1 "$folder/seen.jsonl")"
}
run '{"precompute_ref_log_probs": false, "max_length": null, "ld_alpha": 0.2}'
run '{"precompute_ref_log_probs": true, "max_length": null}'
run '{"precompute_ref_log_probs": true, "max_length": null, "ld_alpha": 0.2}'
run '{"precompute_ref_log_probs": false, "max_length": 6, "truncation_mode": "keep_end"}'
run '{"precompute_ref_log_probs": true, "max_length": 6, "truncation_mode": "keep_end"}'
"$folder/env/bin/python" - "$folder/seen.jsonl" <<'PY'
import json
import sys

margins = [abs(json.loads(line)["rewards/margins"]) for line in open(sys.argv[1])]
sys.exit(0 if max(margins[0], margins[1], margins[3]) < 1e-4 and min(margins[2], margins[4]) > 0.05 else 1)
PY
