#!/usr/bin/env bash
# torch 2.13.0 and 2.14.1: autocast keeps the bfloat16 copy of each weight until its region ends, also once the weight has changed in
# place. Optimizer steps within one region thus give the same loss and the same gradient each time, while the weights move on; new
# weights that are loaded there, also under no_grad, are not used. There is no message. inference_mode and cache_enabled=False, or
# a region for each forward pass, use the new weights.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/env/bin/python" - 2> "$folder/messages" <<'PY' || { cat "$folder/messages"; exit 1; }
import contextlib
import sys

import torch
from torch import nn

inputs = torch.ones(1, 4)


def region(**options):
    return torch.autocast("cpu", dtype=torch.bfloat16, **options)


def layer(seed):
    torch.manual_seed(seed)
    return nn.Linear(4, 1)


def losses(around, each):
    policy = layer(0)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    found = []
    with around:
        for _ in range(4):
            with each():
                loss = (policy(inputs).float() - 3).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(round(loss.item(), 4))
    return found


def after_loading(mode, **options):
    sampler, trained = layer(0), layer(1)
    with mode(), region(**options):
        sampler(inputs)
        sampler.load_state_dict(trained.state_dict())
        given = sampler(inputs).item()
    with mode(), region():
        return given == trained(inputs).item()


one = losses(region(), contextlib.nullcontext)
several = losses(contextlib.nullcontext(), region)
print("losses of four steps in one region:  ", one)
print("losses of four steps, a region each: ", several)
loaded = {
    "no_grad": after_loading(torch.no_grad),
    "no_grad, cache_enabled=False": after_loading(torch.no_grad, cache_enabled=False),
    "inference_mode": after_loading(torch.inference_mode),
}
for name, is_new in loaded.items():
    print(f"weights loaded within a region are used, {name}: {is_new}")
as_expected = len(set(one)) == 1 and several == sorted(set(several), reverse=True) and list(loaded.values()) == [False, True, True]
sys.exit(0 if as_expected else 1)
PY
