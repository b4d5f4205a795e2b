#!/usr/bin/env bash
# diffusers 0.42.1 with peft 0.21.2: `save_lora_weights` of a pipeline writes an adapter without its alpha, and `load_lora_weights`
# takes alpha to be the rank. An adapter that was trained with alpha 32 and rank 4 comes back with an eighth of its strength,
# without a message. Alpha is kept only if the caller collects the adapter's metadata and passes it too
# (`transformer_lora_adapter_metadata`), as `save_lora_adapter` of a model does by itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 diffusers==0.42.1 peft==0.21.2 transformers==5.24.0 accelerate==1.15.0
cat > "$folder/see.py" <<'PY'
import copy
import sys
import tempfile

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
from peft import LoraConfig, get_peft_model_state_dict

torch.manual_seed(0)
base = SD3Transformer2DModel(
    sample_size=16, patch_size=4, in_channels=3, out_channels=3, num_layers=1, attention_head_dim=8, num_attention_heads=2,
    joint_attention_dim=16, caption_projection_dim=16, pooled_projection_dim=16, pos_embed_max_size=4,
).eval()
given = dict(
    hidden_states=torch.randn(4, 3, 16, 16), encoder_hidden_states=torch.randn(4, 2, 16), pooled_projections=torch.randn(4, 16),
    timestep=torch.full((4,), 500.0), return_dict=False,
)


def change(model):
    with torch.no_grad():
        return model.eval()(**given)[0] - base(**given)[0]


trained = copy.deepcopy(base)
trained.add_adapter(LoraConfig(r=4, lora_alpha=32, target_modules=["to_q", "to_k", "to_v", "to_out.0"]))
with torch.no_grad():
    for name, weight in trained.named_parameters():
        if "lora_B" in name:
            weight.normal_(std=0.02)
layers = get_peft_model_state_dict(trained)


def loaded(**more):
    with tempfile.TemporaryDirectory() as kept:
        StableDiffusion3Pipeline.save_lora_weights(kept, transformer_lora_layers=layers, **more)
        names = ("vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2", "text_encoder_3", "tokenizer_3")
        pipeline = StableDiffusion3Pipeline(
            transformer=copy.deepcopy(base), scheduler=FlowMatchEulerDiscreteScheduler(), **dict.fromkeys(names)
        )
        pipeline.load_lora_weights(kept)
    return pipeline.transformer


plain = loaded()
(config,) = plain.peft_config.values()
print(f"trained with rank 4 and alpha 32; loaded with rank {config.r} and alpha {config.lora_alpha}")
strength = (change(plain).norm() / change(trained).norm()).item()
print(f"the loaded adapter changes the output by {strength:.3f} of what the trained one does")
whole = loaded(transformer_lora_adapter_metadata=trained.peft_config["default"].to_dict())
again = (change(whole) - change(trained)).abs().max().item()
print(f"with metadata passed beside the layers: largest difference {again:.1e}")
sys.exit(0 if (config.r, config.lora_alpha) == (4, 4) and 0.1 < strength < 0.15 and again < 1e-6 else 1)
PY
HF_HUB_OFFLINE=1 HOME="$folder" "$folder/env/bin/python" "$folder/see.py" 2> "$folder/messages" || { cat "$folder/messages"; exit 1; }
