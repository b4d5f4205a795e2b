#!/usr/bin/env bash
# diffusers 0.42.1: `FlowMatchEulerDiscreteScheduler.step` with `per_token_timesteps` goes the other way. The same prediction at the
# same time is subtracted where it is added without them, so that latents move from the image towards noise: of a velocity that
# is exact, four steps without times of tokens arrive at the image, four steps with them at twice the noise minus the image.
# The argument's documentation does not say so; the pipelines that pass it negate their prediction first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 diffusers==0.42.1
cat > "$folder/see.py" <<'PY'
import sys

import torch
from diffusers import FlowMatchEulerDiscreteScheduler

image = torch.full((1, 2, 3), 5.0)  # two tokens of three numbers
noise = torch.full((1, 2, 3), 1.0)
velocity = noise - image  # exact at every time


def arrived(by_token):
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(4)
    latents = noise
    for time in scheduler.timesteps:
        more = {"per_token_timesteps": time.expand(1, 2)} if by_token else {}
        latents = scheduler.step(velocity, time, latents, **more).prev_sample
    return [round(number, 2) for number in latents.flatten().tolist()]


plain, by_token = arrived(False), arrived(True)
print("image 5.0, noise 1.0; four steps arrive at", plain[0])
print("with the same times passed for each token, at", by_token[0])
sys.exit(0 if plain == [5.0] * 6 and by_token == [-3.0] * 6 else 1)
PY
HF_HUB_OFFLINE=1 HOME="$folder" "$folder/env/bin/python" "$folder/see.py" 2> "$folder/messages" || { cat "$folder/messages"; exit 1; }
