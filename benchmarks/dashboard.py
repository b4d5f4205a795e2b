"""How quickly does the dashboard answer over a large ledger: 1,000 runs, one of them with 100,000 iterations?

An HTTP client requests each page over a socket, several at a time, from the server that `yatt dashboard` starts; once
on SQLite and once on PostgreSQL. The figures are those of the slowest page. Each page is requested once before it is
measured.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.seeded_ledger import ITERATIONS, RUNS, seed
from db.ledger import Ledger
from flows.run.home import Home
from yatt_core.spec import load_spec

PAGES: Mapping[str, str] = {
    "run list": "/api/v1/runs?limit=100",
    "run list, searched": "/api/v1/runs?text=short-9&state=completed",
    "run": "/api/v1/runs/{run}",
    "series": "/api/v1/runs/{run}/series?key=reward/mean&key=kl&key=entropy&key=grad_norm",
    "placements": "/api/v1/runs/{run}/placements",
    "placement": "/api/v1/runs/{run}/placements/{iteration}",
    "rollouts": "/api/v1/runs/{run}/rollouts/{iteration}?order=reward",
    "rollouts, searched": "/api/v1/runs/{run}/rollouts/{iteration}?text=thought%207",
    "rollouts, grouped": "/api/v1/runs/{run}/rollouts/{iteration}/groups?order=spread",
    "rollouts, compared": "/api/v1/runs/{run}/rollouts/{before}/compare/{iteration}",
    "checkpoints": "/api/v1/runs/{run}/checkpoints",
    "faults": "/api/v1/runs/{run}/faults",
    "logs": "/api/v1/runs/{run}/logs?actor=controller",
    "lineage": "/api/v1/runs/{run}/lineage",
    "events": "/api/v1/runs/{run}/events",
    "compare": "/api/v1/compare?run={run}&run=short-7&key=reward/mean",
    "metrics": "/metrics",
    "page: run list": "/",
    "page: run": "/runs/{run}",
    "page: spec": "/runs/{run}/spec",
    "page: run, now": "/runs/{run}/now",
    "page: devices": "/runs/{run}/devices?iteration={iteration}",
    "page: rollouts": "/runs/{run}/rollouts?iteration={iteration}&order=reward",
    "page: rollouts, compared": "/runs/{run}/rollouts?iteration={iteration}&against={before}",
    "page: checkpoints": "/runs/{run}/checkpoints",
    "page: faults": "/runs/{run}/faults",
    "page: logs": "/runs/{run}/logs?actor=controller-0",
    "page: lineage": "/runs/{run}/lineage",
    "page: compare": "/compare?run={run}&run=short-7",
}
CONCURRENCY = 4
REQUESTS = 40
START_SECONDS = 120.0


def measure(
    database: str, dsn: str | None, runs: int, iterations: int
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Measures one database: its figures, and the median and 95th percentile of each page in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="yatt-dashboard-") as folder:
        home = Home(Path(folder) / "runs")
        home.folder.mkdir()
        address = dsn or f"sqlite:///{home.folder / 'ledger.db'}"
        started = time.perf_counter()
        spec = load_spec(Path("configs/virtual.yaml"))
        with Ledger.open(address) as ledger:
            run = seed(ledger=ledger, home=home, spec=spec, runs=runs, iterations=iterations)
        progress(f"{database}: seeded in {time.perf_counter() - started:.0f} s")
        with served(home, address) as client:
            pages = {
                name: _page(client=client, name=name, path=path, run=run, iteration=iterations)
                for name, path in PAGES.items()
            }
    p50 = max(figures[0] for figures in pages.values())
    p95 = max(figures[1] for figures in pages.values())
    return {f"page_p50_ms_{database}": p50, f"page_p95_ms_{database}": p95}, pages


def _page(client: httpx.Client, name: str, path: str, run: str, iteration: int) -> list[float]:
    """Measures a page in milliseconds: median and 95th percentile."""
    address = path.format(run=quote(run), iteration=iteration, before=iteration - 1)

    def ask(_: int) -> float:
        started = time.perf_counter()
        client.get(address).raise_for_status()
        return (time.perf_counter() - started) * 1000

    first = ask(0)
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        took = list(pool.map(ask, range(REQUESTS)))
    median = statistics.median(took)
    late = statistics.quantiles(took, n=20)[-1]
    progress(f"  {name:<20} first {first:7.1f} ms, median {median:7.1f}, p95 {late:7.1f}")
    return [median, late, first]


@contextmanager
def served(home: Home, address: str) -> Iterator[httpx.Client]:
    """Yields a client of a dashboard that runs in its own process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ops.cli.main", "--home", str(home.folder), "dashboard", "--port", str(port)]
    process = subprocess.Popen(command, env=os.environ | {"YATT_LEDGER": address})
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            _await(client, process)
            yield client
    finally:
        process.terminate()
        process.wait()


def _await(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the dashboard ended with exit code {process.returncode}")
        try:
            client.get("/health").raise_for_status()
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"the dashboard did not answer within {START_SECONDS:.0f} s")


def _on_postgresql(dsn: str | None, runs: int, iterations: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Measures the database at `dsn`, or a server of its own if there is no `dsn`."""
    if dsn is not None:
        return measure("postgresql", dsn, runs, iterations)
    from tests.postgresql import start_server

    with tempfile.TemporaryDirectory(prefix="yatt-postgresql-") as folder:
        server = start_server(Path(folder) / "data")
        try:
            return measure("postgresql", server.create("dashboard"), runs, iterations)
        finally:
            server.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints the report."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs in the ledger (default {RUNS})")
    parser.add_argument(
        "--iterations", type=int, default=ITERATIONS, help=f"iterations of the long run (default {ITERATIONS})"
    )
    parser.add_argument("--dsn", help="an empty PostgreSQL database, instead of the benchmark's own server")
    given = parser.parse_args(arguments)
    before = load_average()
    sqlite, sqlite_pages = measure("sqlite", None, given.runs, given.iterations)
    postgresql, postgresql_pages = _on_postgresql(given.dsn, given.runs, given.iterations)
    details = {
        "runs": given.runs,
        "iterations": given.iterations,
        "concurrency": CONCURRENCY,
        "requests": REQUESTS,
        "median, p95 and first answer in ms": {"sqlite": sqlite_pages, "postgresql": postgresql_pages},
    }
    load = [before, load_average()]
    print_report(Report("dashboard", sqlite | postgresql, [], load, details=details), given.json)


if __name__ == "__main__":
    main()
