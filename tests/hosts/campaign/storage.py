"""The services on the storage host: `python -m tests.hosts.campaign.storage FOLDER ADDRESS`, until its input ends.

Starts PostgreSQL, an S3 server and a Prefect server at the address, prints as JSON the environment of drivers that use
them and the ledger's address on this machine, a Unix socket, and ends them. The S3 server keeps objects in memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from flows.prefect_io import prefect_server
from tests.object_store.server import S3Server
from tests.postgresql import start_server

BUCKET, PORT = "hosts", 4200
READY_SECONDS = 180.0
LEDGER = "ledger_here"
"""The key of the ledger's address on this machine."""


def main() -> None:
    folder, address = Path(sys.argv[1]), sys.argv[2]
    prefect = start_prefect(folder, address)
    database = start_server(folder / "postgresql", address)
    store = S3Server(address)
    store.start()
    try:
        here = database.create("ledger")
        store.make_bucket(BUCKET)
        server = f"http://{address}:{PORT}/api"
        await_answer(f"{server}/health", prefect)
        environment = {
            **store.environment,
            "YATT_LEDGER": f"postgresql://postgres@{address}/ledger",
            prefect_server.PREFECT_VARIABLE: server,
        }
        sys.stdout.write(json.dumps(environment | {LEDGER: here}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        prefect.terminate()
        store.stop()
        database.close()


def start_prefect(folder: Path, address: str) -> subprocess.Popen[bytes]:
    service = prefect_server.server_service(folder, folder / "starts")
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    argv = [address if word == "127.0.0.1" else word.format(port=PORT) for word in service.argv]
    with Path(service.log_file).open("wb") as log:
        return subprocess.Popen(argv, env={**os.environ, **service.environment}, stdout=log, stderr=log)


def await_answer(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    main()
