#!/usr/bin/env bash
# Ray 2.60.0: JobConfig(code_search_path=[...]), with any folder, even an empty one, has Python's actors made from imported classes,
# which are then not stored with the job. To see whether a class of the driver's own script can be imported, Ray imports the script
# under its file's name: the driver runs it a second time, and its workers run it, too.
# Seen: 'without a path: 1 stored; the script has run in 1 processes, 1 times', 'with a path: 0 stored; the script has run in 2
# processes, 3 times'.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q "ray==2.60.0"
mkdir "$folder/empty"
cat > "$folder/script.py" <<'PY'
import os
import sys

import ray
from ray.experimental.internal_kv import _internal_kv_list
from ray.job_config import JobConfig

with open(sys.argv[1] if __name__ == "__main__" else os.environ["RUNS"], "a") as runs:
    runs.write(f"{os.getpid()}\n")


class Own:
    def answer(self):
        return "alive"


if __name__ == "__main__":
    path, words = sys.argv[2:], "with a path" if sys.argv[2:] else "without a path"
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, job_config=JobConfig(code_search_path=path))
    assert ray.get(ray.remote(num_cpus=0)(Own).remote().answer.remote()) == "alive"
    stored = len(_internal_kv_list("ActorClass:", namespace="fun"))
    with open(sys.argv[1]) as runs:
        by = runs.read().split()
    print(f"{words}: {stored} stored; the script has run in {len(set(by))} processes, {len(by)} times")
PY
cd "$folder"
export RAY_USAGE_STATS_ENABLED=0 RAY_TMPDIR="$folder"
for path in "" "$folder/empty"; do
    export RUNS="$folder/runs${path:+.path}"
    "$folder/env/bin/python" script.py "$RUNS" ${path:+"$path"} 2> "$folder/log" || { tail -5 "$folder/log"; false; }
done | tee "$folder/seen"
diff "$folder/seen" - <<'SEEN'
without a path: 1 stored; the script has run in 1 processes, 1 times
with a path: 0 stored; the script has run in 2 processes, 3 times
SEEN
