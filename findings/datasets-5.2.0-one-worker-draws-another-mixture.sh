#!/usr/bin/env bash
# datasets 5.2.0 with torch 2.13.0: `interleave_datasets(..., probabilities=, seed=)` over streamed datasets takes its rows in another
# order, and other numbers of them, with one worker of a DataLoader than with none. A worker's seed is drawn from the mixture's generator
# even for the first and only worker, so that `num_workers=1` does not repeat what `num_workers=0` has drawn. No message says so. A run
# whose data loader gets a worker to save time thus learns other prompts in other shares.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q datasets==5.2.0 torch==2.13.0
cat > "$folder/see.py" <<'PY'
import sys
from collections import Counter

from datasets import IterableDataset, interleave_datasets
from torch.utils.data import DataLoader

PROMPTS = 1000


def prompts(source, shards):
    for shard in shards:
        for number in range(PROMPTS // 4):
            yield {"source": source, "number": shard * (PROMPTS // 4) + number}


def streamed(source):
    return IterableDataset.from_generator(prompts, gen_kwargs={"source": source, "shards": list(range(4))})


def drawn(workers):
    mixture = interleave_datasets([streamed("math"), streamed("code")], probabilities=[0.8, 0.2], seed=0)
    return [(row["source"], row["number"]) for row in DataLoader(mixture, batch_size=None, num_workers=workers)]


if __name__ == "__main__":
    without = drawn(0)
    again = drawn(0)
    one = drawn(1)
    for workers, rows in (("no worker", without), ("no worker, again", again), ("one worker", one)):
        print(f"{workers}: {dict(Counter(source for source, _ in rows))}, first {[source for source, _ in rows[:8]]}")
    sys.exit(0 if without == again and set(one) != set(without) else 1)
PY
HOME="$folder" "$folder/env/bin/python" "$folder/see.py" 2> "$folder/messages" || { cat "$folder/messages"; exit 1; }
