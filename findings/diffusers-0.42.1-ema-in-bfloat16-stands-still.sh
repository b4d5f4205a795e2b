#!/usr/bin/env bash
# diffusers 0.42.1: `EMAModel` averages in the dtype of the weights. In bfloat16, with its default decay of 0.9999, each step adds a
# ten-thousandth of the difference, which rounds to nothing: after the warm-up the average never moves again, however far the weights
# go and however long. `copy_to` and `save_pretrained` then give weights of the beginning as if they were averages, without a message.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 diffusers==0.42.1
cat > "$folder/see.py" <<'PY'
import sys

import torch
from diffusers.training_utils import EMAModel

WARM_UP, STEPS = 10_000, 20_000


def average(dtype):
    weight = torch.nn.Parameter(torch.ones(4, dtype=dtype))
    ema = EMAModel([weight])
    for _ in range(WARM_UP):
        ema.step([weight])
    with torch.no_grad():
        weight.fill_(2.0)
    for _ in range(STEPS):
        ema.step([weight])
    ema.copy_to([weight])
    return weight[0].item()


found = {dtype: average(dtype) for dtype in (torch.float32, torch.bfloat16)}
for dtype, value in found.items():
    print(f"{dtype}: weights went from 1 to 2; {STEPS} steps later their average is {value:.3f}")
sys.exit(0 if found[torch.bfloat16] == 1.0 and found[torch.float32] > 1.8 else 1)
PY
HF_HUB_OFFLINE=1 HOME="$folder" "$folder/env/bin/python" "$folder/see.py" 2> "$folder/messages" || { cat "$folder/messages"; exit 1; }
