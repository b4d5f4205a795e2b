#!/usr/bin/env bash
# peft 0.21.2: `add_weighted_adapter` of one adapter with weight 1 should be that adapter. With use_rslora=True its change of the
# weights is the square root of its rank times too strong (4 times at rank 16), since the new adapter has alpha = rank and rslora
# still on. Trained rows of new tokens, magnitudes of DoRA and biases of LoRA (lora_bias) are left out: the new adapter has them
# as they begin. So it is for "linear", "cat" and "svd", and there is no message.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 peft==0.21.2 transformers==5.24.0 accelerate==1.15.0
cat > "$folder/see.py" <<'PY'
import copy
import sys
import warnings

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
base = LlamaForCausalLM(LlamaConfig(
    vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
)).eval()
tokens = torch.randint(0, 16, (2, 6))
kinds = {
    "plain": {},
    "rslora of rank 4": dict(use_rslora=True),
    "rslora of rank 16": dict(use_rslora=True, r=16),
    "new tokens": dict(trainable_token_indices=[1, 2, 3]),
    "DoRA": dict(use_dora=True),
    "biases": dict(lora_bias=True),
}


def logits(model):
    with torch.no_grad():
        return model(tokens).logits


def combined(options):
    torch.manual_seed(1)
    model = get_peft_model(copy.deepcopy(base), LoraConfig(
        **{"r": 4, "lora_alpha": 8, "target_modules": ["v_proj", "up_proj"], **options},
    )).eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    wanted = logits(model)
    effect = float((wanted - logits(base)).abs().max())
    seen = {}
    for way in ("linear", "cat", "svd"):
        model.add_weighted_adapter(["default"], [1.0], way, combination_type=way)
        layer = model.base_model.model.model.layers[0].mlp.up_proj
        strength = layer.get_delta_weight(way).norm() / layer.get_delta_weight("default").norm()
        model.set_adapter(way)
        seen[way] = (float(strength), float((logits(model) - wanted).abs().max()) / effect)
        model.set_adapter("default")
    return seen


with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    found = {name: combined(options) for name, options in kinds.items()}
about = [str(one.message) for one in told if "weighted" in str(one.message)]
for name, ways in found.items():
    words = [f"{way} strength {strength:.2f}, difference {part:.2f} of the effect" for way, (strength, part) in ways.items()]
    print(f"{name}: {'; '.join(words)}")
print("messages about the combination:", about)


def strengths(name, value):
    return all(abs(strength - value) < 1e-3 for strength, _ in found[name].values())


as_expected = (
    all(part < 1e-4 for _, part in found["plain"].values())
    and strengths("rslora of rank 4", 2)
    and strengths("rslora of rank 16", 4)
    and all(part > 0.05 for name in ("new tokens", "DoRA", "biases") for _, part in found[name].values())
    and not about
)
sys.exit(0 if as_expected else 1)
PY
HF_HUB_OFFLINE=1 HOME="$folder" "$folder/env/bin/python" "$folder/see.py" 2> "$folder/messages" \
    || { cat "$folder/messages"; exit 1; }
