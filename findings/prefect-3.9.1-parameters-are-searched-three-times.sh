#!/usr/bin/env bash
# Prefect 3.9.1: a call of a task looks for results of other tasks in everything that its parameters contain: each list, dict,
# dataclass and Pydantic model, down to the last number, three times a call. It does so where there is no other task, no cache policy and
# no result to keep, so a task that is given a batch of samples takes longer to begin than it may take to run. It does not look into
# what the caller annotates as `opaque` or `quote`, nor into a function, such as a functools.partial that holds the batch.
# Seen, for 1,000 objects with 50 numbers each: every object read 3 times, 500 to 950 ms a call; otherwise not read, 9 to 26 ms a call.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q "prefect==3.9.1"
cat > "$folder/see.py" <<'PY'
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.utilities.annotations import opaque

reads = Counter()


@dataclass
class Sample:
    tokens: list

    def __getattribute__(self, name):
        if name == "tokens":
            reads["now"] += 1
        return object.__getattribute__(self, name)


SAMPLES = [Sample(list(range(50))) for _ in range(1000)]


@task(cache_policy=NO_CACHE, persist_result=False, retries=0)
def count(samples):
    return 1 if callable(samples) else len(samples)


@flow(persist_result=False)
def twice():
    seen = {}
    for name, given in (("a list", SAMPLES), ("an opaque list", opaque(SAMPLES)), ("a function", partial(len, SAMPLES))):
        count(given)
        reads.clear()
        began = time.perf_counter()
        count(given)
        seen[name] = (reads["now"] / len(SAMPLES), time.perf_counter() - began)
    return seen


seen = twice()
for name, (times, seconds) in seen.items():
    print(f"{name}: each of 1,000 objects read {times:g} times a call, {1000 * seconds:.0f} ms")
times = [times for times, _ in seen.values()]
sys.exit(0 if times == [3, 0, 0] else 1)
PY
export HOME="$folder" PREFECT_HOME="$folder/prefect" DO_NOT_TRACK=1
"$folder/env/bin/python" "$folder/see.py" 2> "$folder/log" || { tail -5 "$folder/log"; false; }
