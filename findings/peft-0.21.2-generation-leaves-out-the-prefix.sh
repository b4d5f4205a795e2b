#!/usr/bin/env bash
# peft 0.21.2 with transformers 5.24.0: `generate` of a model with a trained prefix leaves the prefix out, without a warning. Its
# tokens and logits are the base model's to the last bit of round-off, while a forward pass, and so training and log-probabilities,
# has the prefix. With a trained prompt, the first token is right and later ones are not. transformers 5.24 calls a cache `cache`,
# and peft looks for it under its old name. Seen for Qwen3 and Llama; with transformers 5.19.0 both agree with the forward pass.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 transformers==5.24.0 peft==0.21.2
cat > "$folder/see.py" <<'PY'
import copy
import sys

import torch
from peft import PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

sizes = dict(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)
kinds = {"qwen3": (Qwen3ForCausalLM, Qwen3Config(**sizes, head_dim=8)), "llama": (LlamaForCausalLM, LlamaConfig(**sizes))}
prompts = torch.tensor([[5, 6, 7, 8, 9], [20, 21, 22, 23, 24]])
NEW = 5


def generated(model):
    made = model.generate(
        input_ids=prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False,
        pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )
    return made.sequences, torch.stack(made.logits, dim=1)


def largest(one, other):
    return [round(value, 4) for value in (one - other).abs().amax((0, 2)).tolist()]


as_expected = True
for name, (kind, config) in kinds.items():
    torch.manual_seed(0)
    base = kind(config).eval()
    of_base = generated(base)
    for tuning in (PrefixTuningConfig, PromptTuningConfig):
        model = get_peft_model(copy.deepcopy(base), tuning(task_type="CAUSAL_LM", num_virtual_tokens=4)).eval()
        with torch.no_grad():
            model.prompt_encoder["default"].embedding.weight.normal_()
            sequences, logits = generated(model)
            forward = model(input_ids=sequences, attention_mask=torch.ones_like(sequences)).logits[:, -NEW - 1 : -1]
        gaps = largest(logits, forward)
        print(f"{name}, {tuning.__name__}: generate and forward pass differ, by token, by {gaps}")
        if tuning is PrefixTuningConfig:
            same = torch.equal(sequences, of_base[0]) and max(largest(logits, of_base[1])) == 0
            print(f"{name}, {tuning.__name__}: generate gives what the base model does: {same}")
            as_expected = as_expected and same and min(gaps) > 0.05
        else:
            as_expected = as_expected and gaps[0] == 0 and min(gaps[1:]) > 0.01
sys.exit(0 if as_expected else 1)
PY
HF_HUB_OFFLINE=1 HOME="$folder" "$folder/env/bin/python" "$folder/see.py" 2> "$folder/messages" || { cat "$folder/messages"; exit 1; }
