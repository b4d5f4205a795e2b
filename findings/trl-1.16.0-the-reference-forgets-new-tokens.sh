#!/usr/bin/env bash
# TRL 1.16.0 with peft 0.21.2: a model that comes with a trained adapter is to be its own reference. TRL copies the adapter to one
# called "ref", but only parameters with ".default." inside their names, so that those whose names end in ".default" stay as they
# begin: trained rows of new tokens (trainable_token_indices), LoRA of embeddings, all of IA3, LoHa, LoKr and VeRA. DPO then has
# rewards and a margin before its first step, where they are 0 for LoRA of linear layers, and the KL penalty of GRPO pulls towards
# a model without the new tokens. There is no message.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 trl==1.16.0 transformers==5.24.0 peft==0.21.2 accelerate==1.15.0 datasets==5.2.0
cat > "$folder/see.py" <<'PY'
import sys

import torch
from datasets import Dataset
from peft import IA3Config, LoKrConfig, LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

words = ["<pad>", "<eos>", "<unk>", "a", "b", "c", "d", "e", "f"]
core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")
pairs = Dataset.from_list([{"prompt": "a b", "chosen": " c d", "rejected": " e f"}] * 4)
prompts = Dataset.from_list([{"prompt": "a b"}] * 4)
sizes = dict(
    vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, eos_token_id=1, pad_token_id=0,
)
common = dict(
    output_dir=sys.argv[1], max_steps=1, logging_steps=1, report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
    disable_tqdm=True, save_strategy="no",
)
adapters = {
    "linear layers": LoraConfig(r=4, target_modules="all-linear"),
    "linear layers and tokens": LoraConfig(r=4, target_modules="all-linear", trainable_token_indices=[3, 4, 5, 6]),
    "embeddings": LoraConfig(r=4, target_modules=["q_proj", "embed_tokens"]),
    "IA3": IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "LoKr": LoKrConfig(r=4, target_modules=["q_proj", "v_proj"]),
}


def trained_model(adapter):
    torch.manual_seed(0)
    model = get_peft_model(Qwen3ForCausalLM(Qwen3Config(**sizes)), adapter)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


def first_step(adapter):
    trainer = DPOTrainer(
        model=trained_model(adapter), args=DPOConfig(per_device_train_batch_size=4, **common), train_dataset=pairs,
        processing_class=tokenizer,
    )
    trainer.train()
    return {name: float(trainer.state.log_history[0][name]) for name in ("loss", "rewards/chosen", "rewards/margins")}


def distance_in_grpo(adapter):
    trainer = GRPOTrainer(
        model=trained_model(adapter), args=GRPOConfig(beta=0.1, per_device_train_batch_size=4, num_generations=4, **common),
        reward_funcs=lambda completions, **_: [0.0] * len(completions), train_dataset=prompts, processing_class=tokenizer,
    )
    model = trainer.model.eval()
    logits = []
    for name in ("default", "ref"):
        model.set_adapter(name)
        with torch.no_grad():
            logits.append(model(input_ids=torch.arange(3, 9)[None]).logits)
    return float((logits[0] - logits[1]).abs().max())


found = {name: first_step(adapter) for name, adapter in adapters.items()}
distances = {name: distance_in_grpo(adapter) for name, adapter in adapters.items()}
for name, values in found.items():
    rounded = {key: round(value, 4) for key, value in values.items()}
    print(f"seen: {name}: DPO's first step {rounded}, GRPO's reference is {distances[name]:.4f} away", file=sys.stderr)
kept = "linear layers"
right = abs(found[kept]["rewards/margins"]) < 1e-6 and distances[kept] < 1e-6
lost = [name for name in adapters if name != kept]
wrong = all(abs(found[name]["rewards/margins"]) > 1e-4 and distances[name] > 1e-3 for name in lost)
sys.exit(0 if right and wrong else 1)
PY
HF_HUB_OFFLINE=1 HOME="$folder" "$folder/env/bin/python" "$folder/see.py" "$folder" > "$folder/progress" 2> "$folder/messages" \
    || { cat "$folder/messages"; exit 1; }
grep "^seen:" "$folder/messages"
