#!/usr/bin/env bash
# transformers 5.24.0: positions that begin at 0 again mark the samples of a packed row, and each attends only to itself. This holds
# without a cache alone: a forward pass has one by default, also in training, and then samples see those before them. The same row
# has one sample's logits with use_cache=False or gradient checkpointing, and others without it, or with a mask that is all ones.
# Seen for Qwen3 and Llama with sdpa and eager attention: a difference of 0 against 0.2 and more.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 transformers==5.24.0
cat > "$folder/see.py" <<'PY'
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

sizes = dict(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)
kinds = {"qwen3": (Qwen3ForCausalLM, Qwen3Config(**sizes, head_dim=8)), "llama": (LlamaForCausalLM, LlamaConfig(**sizes))}
as_expected = True
for name, (kind, config) in kinds.items():
    for attention in ("sdpa", "eager"):
        torch.manual_seed(0)
        model = kind._from_config(config, attn_implementation=attention).train()
        first, second = torch.randint(64, (1, 6)), torch.randint(64, (1, 7))
        row = torch.cat([first, second], dim=1)
        positions = torch.tensor([[*range(6), *range(7)]])
        alone = model(second).logits

        def difference(**options):
            packed = model(row, position_ids=positions, **options).logits[:, 6:]
            return round((packed - alone).abs().max().item(), 4)

        seen = {
            "default": difference(),
            "use_cache=False": difference(use_cache=False),
            "use_cache=False, mask of ones": difference(use_cache=False, attention_mask=torch.ones_like(row)),
        }
        model.gradient_checkpointing_enable()
        seen["gradient checkpointing"] = difference()
        print(name, attention, seen)
        separate = [seen["use_cache=False"], seen["gradient checkpointing"]]
        together = [seen["default"], seen["use_cache=False, mask of ones"]]
        as_expected = as_expected and max(separate) == 0 and min(together) > 0.05
sys.exit(0 if as_expected else 1)
PY
HF_HUB_OFFLINE=1 HOME="$folder" "$folder/env/bin/python" "$folder/see.py" 2> "$folder/messages" || { cat "$folder/messages"; exit 1; }
