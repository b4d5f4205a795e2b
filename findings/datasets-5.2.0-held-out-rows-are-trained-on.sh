#!/usr/bin/env bash
# datasets 5.2.0: the rows that `take` and `skip` of a stream give depend on the number of workers that read it: each worker
# takes, or skips, its part of n in its own shards. `stream.take(n)` to evaluate and `stream.skip(n)` to train have no row in
# common only if both are read by the same number of workers. Evaluated in a plain loop and trained on with 4 workers, 12 of 16
# held-out rows of a stream of 4 shards are trained on, and as many rows are in neither part. There is no message, and each part
# has the right size.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q torch==2.13.0 datasets==5.2.0
cat > "$folder/see.py" <<'PY'
import json
import sys

from datasets import load_dataset
from torch.utils.data import DataLoader

ROWS, HELD_OUT, SHARDS = 80, 16, 4


def main():
    files = []
    for shard in range(SHARDS):
        files.append(f"{sys.argv[1]}/rows-{shard}.jsonl")
        numbers = range(shard * ROWS // SHARDS, (shard + 1) * ROWS // SHARDS)
        with open(files[-1], "w") as file:
            file.writelines(json.dumps({"number": number}) + "\n" for number in numbers)
    stream = load_dataset("json", data_files=files, split="train", streaming=True)
    parts = {}
    for workers in (0, 2, 4):
        for name, part in (("held out", stream.take(HELD_OUT)), ("trained on", stream.skip(HELD_OUT))):
            parts[name, workers] = [int(row["number"]) for row in DataLoader(part, batch_size=None, num_workers=workers)]
    found = {}
    for ours in (0, 2, 4):
        for theirs in (0, 2, 4):
            held_out = set(parts["held out", ours])
            trained = set(parts["trained on", theirs])
            found[ours, theirs] = (len(held_out & trained), ROWS - len(held_out | trained))
            print(
                f"held out read by {ours} workers, the rest by {theirs}: {len(held_out)} and {len(trained)} rows, "
                f"{found[ours, theirs][0]} in both, {found[ours, theirs][1]} in neither"
            )
    sizes = {(name, len(set(rows))) for (name, _), rows in parts.items()}
    as_expected = (
        sizes == {("held out", HELD_OUT), ("trained on", ROWS - HELD_OUT)}
        and all(found[workers, workers] == (0, 0) for workers in (0, 2, 4))
        and found[0, 2] == (8, 8)
        and found[0, 4] == (12, 12)
    )
    sys.exit(0 if as_expected else 1)


if __name__ == "__main__":
    main()
PY
HF_HUB_OFFLINE=1 HOME="$folder" "$folder/env/bin/python" "$folder/see.py" "$folder" 2> "$folder/messages" \
    || { cat "$folder/messages"; exit 1; }
