#!/usr/bin/env bash
# diffusers 0.42.1: `set_shift` of FlowMatchEulerDiscreteScheduler changes the scheduler, but not its configuration. A scheduler that
# was tuned with it is saved, and copied by `from_config`, with the shift it began with: the loaded one takes other steps, without a
# message. `from_config(..., shift=3.0)` keeps the shift.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 diffusers==0.42.1
cat > "$folder/see.py" <<'PY'
import sys
import tempfile

from diffusers import FlowMatchEulerDiscreteScheduler as Scheduler


def sigmas(scheduler):
    scheduler.set_timesteps(4)
    return [round(sigma, 3) for sigma in scheduler.sigmas.tolist()]


used = Scheduler()
used.set_shift(3.0)
with tempfile.TemporaryDirectory() as kept:
    used.save_pretrained(kept)
    loaded = Scheduler.from_pretrained(kept)
found = {
    "after set_shift(3.0)": sigmas(used),
    "saved and loaded": sigmas(loaded),
    "from_config": sigmas(Scheduler.from_config(used.config)),
    "from_config(..., shift=3.0)": sigmas(Scheduler.from_config(used.config, shift=3.0)),
    "never shifted": sigmas(Scheduler()),
}
for name, value in found.items():
    print(f"{name}: {value}")
first, saved, copied, stated, plain = found.values()
sys.exit(0 if saved == copied == plain and first != plain and stated != plain else 1)
PY
HF_HUB_OFFLINE=1 HOME="$folder" "$folder/env/bin/python" "$folder/see.py" 2> "$folder/messages" || { cat "$folder/messages"; exit 1; }
