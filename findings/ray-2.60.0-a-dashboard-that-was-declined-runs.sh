#!/usr/bin/env bash
# `ray start --head --include-dashboard=false` with usage statistics turned off (RAY_USAGE_STATS_ENABLED=0). Ray 2.60.0 starts the
# dashboard's process all the same, and tells it to load one module, which reports usage statistics. Nothing says so: neither the
# command's output nor the help of the option ("whether to start the dashboard").
set -euo pipefail
folder=$(mktemp -d)
head=""
trap '[ -z "$head" ] || kill "$head" 2>/dev/null || true; sleep 1; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ray==2.60.0 psutil==7.2.2
export HOME="$folder" RAY_USAGE_STATS_ENABLED=0
setsid "$folder/venv/bin/ray" start --head --block --include-dashboard=false --port=0 --num-cpus=1 \
  --object-store-memory=100000000 --temp-dir="$folder/ray" > "$folder/output" 2>&1 &
head=$!
cat > "$folder/look.py" <<'PY'
import sys
import time

import psutil

head = psutil.Process(int(sys.argv[1]))
until = time.monotonic() + 120
while True:
    commands = [" ".join(child.cmdline()) for child in head.children(recursive=True)]
    if any("/raylet/raylet " in command for command in commands) or time.monotonic() > until:
        break
    time.sleep(0.2)
dashboards = [command for command in commands if "dashboard/dashboard.py" in command]
modules = [word for command in dashboards for word in command.split() if word.startswith("--modules-to-load=")]
for process in [*head.children(recursive=True), head]:
    process.kill()
print(f"{len(dashboards)} processes of the dashboard, with {modules}")
sys.exit(0 if len(dashboards) == 1 and modules == ["--modules-to-load=UsageStatsHead"] else 1)
PY
"$folder/venv/bin/python" "$folder/look.py" "$head"
