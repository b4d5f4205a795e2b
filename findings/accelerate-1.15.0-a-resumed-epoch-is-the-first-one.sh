#!/usr/bin/env bash
# accelerate 1.15.0: with use_seedable_sampler=True, for runs that can be repeated, `save_state` keeps the sampler with its epoch,
# and `load_state` reads it. But a loader counts its epochs itself, from 0, and tells the sampler: a run that is resumed in its
# third epoch by load_state and skip_first_batches reads the rest of the first epoch's order, in which some rows of the third come
# twice and others never, and then the first epoch again. There is no message. Without the seedable sampler, orders after a resume
# are others too. Only `set_epoch` before each epoch, which neither the loader nor the state does, gives the order of a run
# without a break.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 accelerate==1.15.0
"$folder/env/bin/python" - "$folder" 2> "$folder/messages" <<'PY' || { cat "$folder/messages"; exit 1; }
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset

RESUMED_EPOCH, BATCHES_BEFORE = 2, 3


def prepared(seedable):
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable))
    model = torch.nn.Linear(1, 1)
    parts = model, torch.optim.SGD(model.parameters()), DataLoader(TensorDataset(torch.arange(12)), batch_size=2, shuffle=True)
    return accelerator, accelerator.prepare(*parts)[2]


def straight(seedable, folder):
    accelerator, loader = prepared(seedable)
    epochs = []
    for epoch in range(4):
        epochs.append([])
        for number, (batch,) in enumerate(loader, start=1):
            epochs[-1] += batch.tolist()
            if (epoch, number) == (RESUMED_EPOCH, BATCHES_BEFORE):
                accelerator.save_state(folder)
    return epochs


def resumed(seedable, folder, tell_epoch):
    accelerator, loader = prepared(seedable)
    accelerator.load_state(folder)
    epochs = []
    for epoch in (2, 3):
        if tell_epoch:
            loader.set_epoch(epoch)
        current = accelerator.skip_first_batches(loader, BATCHES_BEFORE) if epoch == RESUMED_EPOCH else loader
        epochs.append([number for (batch,) in current for number in batch.tolist()])
    return epochs


found = {}
for seedable in (True, False):
    folder = f"{sys.argv[1]}/state-{seedable}"
    found[seedable] = straight(seedable, folder), resumed(seedable, folder, False), resumed(seedable, folder, True)
    whole, plain, told = found[seedable]
    print(f"seedable sampler {seedable}")
    print("  epochs without a break:", *whole)
    print("  resumed in the third:  ", *plain)
    print("  with set_epoch:        ", *told)
    again = set(plain[0]) & set(whole[RESUMED_EPOCH][: 2 * BATCHES_BEFORE])
    print("  rows of the third epoch that come twice:", sorted(again))
whole, plain, told = found[True]
rest = 2 * BATCHES_BEFORE
as_expected = (
    plain == [whole[0][rest:], whole[0]]
    and told == [whole[2][rest:], whole[3]]
    and found[False][1] != [found[False][0][2][rest:], found[False][0][3]]
)
sys.exit(0 if as_expected else 1)
PY
