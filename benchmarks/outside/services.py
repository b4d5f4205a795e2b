"""The services outside of YATT on a host, each behind a gate: `python -m benchmarks.outside.services FOLDER ADDRESS`.

Starts PostgreSQL, an S3 server, a Prefect server, an MLflow server, a judge and the service of a tool. Prints as JSON the
environment of drivers that use them and the ledger's address on this machine, a Unix socket that no gate is in front of. Reads
lines of JSON `{"gate": ..., "mode": ...}` (null: back), and prints a line once that is done. Ends all when its input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from benchmarks.outside import answers
from benchmarks.outside.gates import Gate, HttpGate, RequestLog, SocketGate, new_session, passing_on
from benchmarks.outside.schedule import Kind, Mode
from benchmarks.outside.tool import ADDRESS
from flows.prefect_io import prefect_server
from ops.group.members import HEALTH, MLFLOW
from tests.hosts.campaign.storage import BUCKET, LEDGER, PORT, await_answer, start_prefect
from tests.object_store.server import S3Server
from tests.postgresql import Server, start_server

REQUESTS = "requests.jsonl"
"""The file with a line for each request."""
JUDGE_PORT = 4180
TOOL_PORT = 4181
STORE_PORT = 4182
MLFLOW_PORT = 4183
PREFECT_PORT = 4184
LEDGER_PORT = 5432
MLFLOW_BEHIND = 5000
SEED_VARIABLE = "YATT_OUTSIDE_SEED"


@dataclass(frozen=True, slots=True)
class Behind:
    """The servers behind the gates."""

    database: Server
    store: S3Server
    prefect: str
    mlflow: str


def main() -> None:
    """Serves until the end of the input."""
    folder = Path(sys.argv[1])
    address = sys.argv[2]
    with servers(folder, address) as behind:
        asyncio.run(serve(folder, address, behind, int(os.environ.get(SEED_VARIABLE, "0"))))


@contextmanager
def servers(folder: Path, address: str) -> Iterator[Behind]:
    """Starts the servers, and ends them."""
    prefect = start_prefect(folder, address)
    mlflow = start_mlflow(folder)
    database = start_server(folder / "postgresql")
    store = S3Server()
    store.start()
    try:
        store.make_bucket(BUCKET)
        behind = Behind(database, store, f"http://{address}:{PORT}", f"http://127.0.0.1:{MLFLOW_BEHIND}")
        await_answer(f"{behind.prefect}/api/health", prefect)
        await_answer(f"{behind.mlflow}{HEALTH[MLFLOW]}", mlflow)
        yield behind
    finally:
        prefect.terminate()
        os.killpg(mlflow.pid, signal.SIGTERM)
        store.stop()
        database.close()


def start_mlflow(folder: Path) -> subprocess.Popen[bytes]:
    """Starts MLflow's server as `yatt up` does."""
    stores = ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    stores += ["--no-serve-artifacts", "--default-artifact-root", (folder / "artifacts").as_uri()]
    serving = ["--host", "127.0.0.1", "--port", str(MLFLOW_BEHIND), "--workers", "1"]
    with (folder / "mlflow.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *stores, *serving],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


async def serve(folder: Path, address: str, behind: Behind, seed: int) -> None:
    """Opens the gates, says where they are, and obeys."""
    log = RequestLog(folder / REQUESTS)
    here = behind.database.create("ledger")
    async with new_session() as session:

        def http(kind: Kind, port: int, target: str) -> HttpGate:
            return HttpGate(
                name=kind,
                address=address,
                port=port,
                log=log,
                answer=passing_on(target, session),
                identify=path_of,
                seed=seed,
            )

        def own(kind: Kind, port: int, answer: object, identify: Callable[[bytes], str]) -> HttpGate:
            assert callable(answer)
            return HttpGate(
                name=kind,
                address=address,
                port=port,
                log=log,
                answer=answer,
                identify=lambda _, body: identify(body),
                seed=seed,
            )

        store = behind.store.environment
        gates: dict[str, Gate] = {
            Kind.JUDGE: own(Kind.JUDGE, JUDGE_PORT, answers.judge, answers.judged),
            Kind.TOOL: own(Kind.TOOL, TOOL_PORT, answers.calculate, answers.called),
            Kind.STORE: http(Kind.STORE, STORE_PORT, store["AWS_ENDPOINT_URL"]),
            Kind.MLFLOW: http(Kind.MLFLOW, MLFLOW_PORT, behind.mlflow),
            Kind.PREFECT: http(Kind.PREFECT, PREFECT_PORT, behind.prefect),
            Kind.LEDGER: SocketGate(
                name=Kind.LEDGER, address=address, port=LEDGER_PORT, log=log, socket=behind.database.socket, seed=seed
            ),
        }
        for gate in gates.values():
            await gate.start()
        environment = {
            **store,
            "AWS_ENDPOINT_URL": f"http://{address}:{STORE_PORT}",
            "YATT_LEDGER": f"postgresql://postgres@{address}:{LEDGER_PORT}/ledger",
            "MLFLOW_TRACKING_URI": f"http://{address}:{MLFLOW_PORT}",
            prefect_server.PREFECT_VARIABLE: f"http://{address}:{PREFECT_PORT}/api",
            ADDRESS: f"http://{address}:{TOOL_PORT}/calculate",
        }
        say(json.dumps(environment | {LEDGER: here}))
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            await gates[asked["gate"]].set(None if asked["mode"] is None else Mode(asked["mode"]))
            say(json.dumps({"done": asked, "at": time.time()}))


def path_of(request: web.Request, body: bytes) -> str:
    """Returns what a request asks, without what differs from one to the next."""
    return f"{request.method} {request.path}"


def say(line: str) -> None:
    """Prints a line to the campaign."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
