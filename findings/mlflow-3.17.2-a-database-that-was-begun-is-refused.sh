#!/usr/bin/env bash
# A process that is killed while MLflow makes the tables of a new SQLite store, as any process may be at its first start. MLflow
# 3.17.2 (mlflow-skinny) makes and migrates the database in place and without a transaction: each later start takes up the
# migrations at the one that was interrupted, repeats it from its beginning, and fails because the table exists already. The
# database holds no run yet, but stays unusable until somebody deletes the file.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mlflow-skinny==3.17.2 sqlalchemy==2.1.9 alembic==1.20.1
cat > "$folder/begin.py" <<'PY'
import os
import signal
import sys

from mlflow.tracking import MlflowClient
from sqlalchemy import Engine, event

last = sys.argv[2] if len(sys.argv) > 2 else ""


@event.listens_for(Engine, "after_cursor_execute")
def end(connection, cursor, statement, parameters, context, many):
    if last and f"CREATE TABLE {last} " in statement:
        os.kill(os.getpid(), signal.SIGKILL)


try:
    MlflowClient(tracking_uri=f"sqlite:///{sys.argv[1]}").search_experiments()
except Exception as error:
    print(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    sys.exit(3)
print("usable")
PY
run() { (cd "$folder" && HOME="$folder" MLFLOW_DISABLE_TELEMETRY=true "$folder/venv/bin/python" begin.py "$@" 2> "$folder/messages"); }
echo "undisturbed: $(run "$folder/whole.db")"
code=0
run "$folder/begun.db" mcp_servers || code=$?
echo "killed: exit code $code"
first=$(run "$folder/begun.db") && exit 1
second=$(run "$folder/begun.db") && exit 1
echo "first start after it: $first"
echo "second start after it: $second"
case "$code $first $second" in
  "137 OperationalError: "*"table mcp_servers already exists"*"table mcp_servers already exists"*) ;;
  *) cat "$folder/messages"; exit 1 ;;
esac
