#!/usr/bin/env bash
# TRL 1.16.0: what a callback follows the weights with is in no checkpoint. With sync_ref_model, the reference of DPO (and of
# GRPO, RLOO and KTO, by the same callback) moves with the policy; a run that is resumed has the reference of the start again: its
# margin is several times that of a run without a break, and loss and weights are others from then on. The average of BEMACallback
# begins anew at the weights of the resume. With a fixed reference the same run goes on bit for bit. There is no message.
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
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import BEMACallback, DPOConfig, DPOTrainer

folder = sys.argv[1]
words = ["<pad>", "<eos>", "<unk>", "a", "b", "c", "d", "e", "f"]
core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")
pairs = [{"prompt": "a b", "chosen": " c d", "rejected": " e f"}, {"prompt": "b c", "chosen": " c d e", "rejected": " e f a"}]
rows = Dataset.from_list(pairs * 16)
torch.manual_seed(0)
Qwen3ForCausalLM(Qwen3Config(
    vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, eos_token_id=1, pad_token_id=0,
)).save_pretrained(f"{folder}/model")


def train(name, synchronized, resume=None):
    settings = DPOConfig(
        output_dir=f"{folder}/{name}", per_device_train_batch_size=4, max_steps=8, logging_steps=1, report_to=[], use_cpu=True,
        bf16=False, gradient_checkpointing=False, disable_tqdm=True, save_steps=4, learning_rate=1e-2,
        lr_scheduler_type="constant", sync_ref_model=synchronized, ref_model_sync_steps=2,
    )
    trainer = DPOTrainer(
        model=f"{folder}/model", args=settings, train_dataset=rows, processing_class=tokenizer,
        callbacks=[BEMACallback(update_freq=1)],
    )
    trainer.train(resume_from_checkpoint=resume)
    return {
        entry["step"]: (float(entry["loss"]), float(entry["rewards/margins"]))
        for entry in trainer.state.log_history if "loss" in entry and entry["step"] > 4
    }


def distance(one, other):
    ours, theirs = (Qwen3ForCausalLM.from_pretrained(f"{folder}/{name}").state_dict() for name in (one, other))
    return float(sum((ours[name] - theirs[name]).square().sum() for name in ours).sqrt())


found = {}
for synchronized in (False, True):
    name = "synchronized" if synchronized else "fixed"
    found[name] = train(name, synchronized)
    found[f"{name}, resumed"] = train(f"{name}-resumed", synchronized, f"{folder}/{name}/checkpoint-4")
for name, values in found.items():
    rounded = {step: tuple(round(one, 4) for one in pair) for step, pair in values.items()}
    print(f"seen: {name}: loss and margin", rounded, file=sys.stderr)
weights = distance("fixed/checkpoint-8", "fixed-resumed/checkpoint-8")
average = distance("fixed/bema", "fixed-resumed/bema")
moved = distance("fixed/bema", "model")
apart = f"weights of step 8 are {weights} apart, averages {average:.3f}; the average has moved {moved:.3f}"
print(f"seen: fixed: {apart}", file=sys.stderr)
as_expected = (
    found["fixed"] == found["fixed, resumed"]
    and weights == 0
    and average > 0.05 * moved
    and found["synchronized, resumed"][5][1] > 2 * found["synchronized"][5][1] + 0.1
)
sys.exit(0 if as_expected else 1)
PY
HF_HUB_OFFLINE=1 HOME="$folder" "$folder/env/bin/python" "$folder/see.py" "$folder" > "$folder/progress" 2> "$folder/messages" \
    || { cat "$folder/messages"; exit 1; }
grep "^seen:" "$folder/messages"
