#!/usr/bin/env bash
# TRL 1.16.0 with peft 0.21.2: an adapter that begins with the main parts of the weights (init_lora_weights="pissa" or "olora") takes
# them out of the base model. TRL's reference is the model with the adapter switched off, so it is what is left of the base, not the
# policy at the start: the first step of DPO, before any change, has rewards and a margin, where they are 0 for an adapter that
# begins at 0. There is no message. The KL penalty of GRPO has the same reference.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 trl==1.16.0 transformers==5.24.0 peft==0.21.2 accelerate==1.15.0 datasets==5.2.0
cat > "$folder/see.py" <<'PY'
import sys

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import DPOConfig, DPOTrainer

words = ["<pad>", "<eos>", "<unk>", "a", "b", "c", "d", "e", "f"]
core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")
rows = Dataset.from_list([{"prompt": "a b", "chosen": " c d", "rejected": " e f"}] * 4)
sizes = dict(
    vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, eos_token_id=1, pad_token_id=0,
)


def first_step(start):
    torch.manual_seed(0)
    settings = DPOConfig(
        output_dir=sys.argv[1], per_device_train_batch_size=4, max_steps=1, logging_steps=1, report_to=[], use_cpu=True, bf16=False,
        gradient_checkpointing=False, disable_tqdm=True, save_strategy="no",
    )
    adapter = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=start)
    trainer = DPOTrainer(
        model=Qwen3ForCausalLM(Qwen3Config(**sizes)), args=settings, train_dataset=rows, processing_class=tokenizer,
        peft_config=adapter,
    )
    trainer.train()
    seen = trainer.state.log_history[0]
    return {name: float(seen[name]) for name in ("loss", "rewards/chosen", "rewards/rejected", "rewards/margins")}


found = {start: first_step(start) for start in (True, "pissa", "olora")}
for start, values in found.items():
    print(f"init_lora_weights={start!r}:", {name: round(value, 4) for name, value in values.items()}, file=sys.stderr)
moved = [abs(found[start]["rewards/margins"]) for start in ("pissa", "olora")]
sys.exit(0 if abs(found[True]["rewards/margins"]) < 1e-6 and min(moved) > 1e-3 else 1)
PY
HF_HUB_OFFLINE=1 HOME="$folder" "$folder/env/bin/python" "$folder/see.py" "$folder" > "$folder/progress" 2> "$folder/messages" \
    || { cat "$folder/messages"; exit 1; }
grep init_lora_weights= "$folder/messages"
