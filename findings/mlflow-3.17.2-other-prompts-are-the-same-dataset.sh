#!/usr/bin/env bash
# MLflow 3.17.2 tells data sets of a run apart by name and digest. The digest of a pandas or Hugging Face data set leaves out columns
# that hold lists, such as messages or tokens, and columns of text with a gap, and all rows after the first 10,000. Of two files
# with the same rewards and numbers of rows, but other prompts, the second is thus the first: the run that was trained on
# second.jsonl says that it was trained on first.jsonl, without a message.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q mlflow-skinny==3.17.2 sqlalchemy==2.1.9 alembic==1.20.1 datasets==5.2.0 pandas==3.1.1
cat > "$folder/see.py" <<'PY'
import sys

import mlflow
import pandas as pd
from datasets import Dataset

mlflow.set_tracking_uri(f"sqlite:///{sys.argv[1]}/mlflow.db")


def rows(word):
    return [{"messages": [{"role": "user", "content": f"{word} question {number}"}], "reward": 0.5} for number in range(100)]


def digests(*tables):
    return [mlflow.data.from_pandas(pd.DataFrame(table), name="train").digest for table in tables]


runs = []
for word in ("first", "second"):
    frame = mlflow.data.from_pandas(pd.DataFrame(rows(word)), source=f"/data/{word}.jsonl", name="train")
    with mlflow.start_run() as run:
        mlflow.log_input(frame, context="training")
    runs.append(run.info.run_id)
sources = [mlflow.get_run(run).inputs.dataset_inputs[0].dataset.source for run in runs]
messages = [mlflow.data.from_huggingface(Dataset.from_list(rows(word)), name="train").digest for word in ("first", "second")]
gaps = digests({"prompt": ["a", "b", None]}, {"prompt": ["c", "d", None]})
texts = [f"question {number}" for number in range(20_000)]
later = digests({"prompt": texts}, {"prompt": [*texts[:10_000], *["other"] * 10_000]})
earlier = digests({"prompt": texts}, {"prompt": ["other", *texts[1:]]})
print("sources of the two runs:     ", *sources)
print("digests of other messages:   ", *messages)
print("digests of texts with a gap: ", *gaps)
print("digests of other later rows: ", *later)
print("digests of another first row:", *earlier)
expected = sources[0] == sources[1] and "first" in sources[1] and earlier[0] != earlier[1]
sys.exit(0 if expected and all(one == other for one, other in (messages, gaps, later)) else 1)
PY
HF_HUB_OFFLINE=1 HOME="$folder" MLFLOW_DISABLE_TELEMETRY=true "$folder/env/bin/python" "$folder/see.py" "$folder" 2> "$folder/messages" || { cat "$folder/messages"; exit 1; }
