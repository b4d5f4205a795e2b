"""The Slurm template, run unchanged with stand-ins for the programs that it calls."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from flows.prefect_io.prefect_server import server_service
from tests.services import ROOT

SCRIPT = ROOT / "ops" / "deploy" / "slurm" / "yatt.sbatch"
STAND_INS = {
    "scontrol": "echo node-1",
    "srun": 'case "$*" in *ip-address*) echo 127.0.0.1;; *) exec sleep 60;; esac',
    "python": 'mkdir "$PREFECT_HOME"; { env; echo "ASKED=$*"; } > "$SEEN.part"; mv "$SEEN.part" "$SEEN"; exec sleep 60',
    "curl": 'test -s "$SEEN"',
    "yatt": 'exit "$DRIVER_ENDS_WITH"',
}


def test_the_slurm_template_is_a_script_that_honours_its_directives() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    text = SCRIPT.read_text()
    directives = re.findall(r"^#SBATCH --([\w-]+)", text, re.MULTILINE)
    assert {"signal", "requeue", "nodes", "time"} <= set(directives)
    assert "--host 127.0.0.1" in text and "0.0.0.0" not in text
    assert "umask 077" in text.partition('> "$token"')[0], "only the owner can read the token"


DATABASE = "PREFECT_API_DATABASE_CONNECTION_URL"


def submitted(tmp_path: Path, nodes: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the job's script. nodes: the number of nodes that Slurm reports; if empty, Slurm reports none."""
    for name in ("bin", "temporary", "runs", "own-prefect", "work"):
        (tmp_path / name).mkdir()
    for name, body in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    own = f"PREFECT_HOME={tmp_path}/own-prefect\n{DATABASE}=postgresql://HOST/prefect\n"
    (tmp_path / "yatt.env").write_text(f"YATT_HOME={tmp_path}/runs\n{own}")
    environment |= {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin", "TMPDIR": f"{tmp_path}/temporary", "SEEN": f"{tmp_path}/seen",
        "YATT_ENVIRONMENT": f"{tmp_path}/yatt.env", "RUN": "mine-1",
        "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node-1",
    }  # fmt: skip
    if nodes:
        environment["SLURM_JOB_NUM_NODES"] = nodes
    command = ["bash", str(SCRIPT)]
    return subprocess.run(command, env=environment, cwd=tmp_path / "work", capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("nodes", "code"), [("", 1), ("1", 0), ("1", 4)], ids=["too early", "done", "paused"])
def test_a_slurm_job_removes_its_own_files_and_nothing_else(tmp_path: Path, nodes: str, code: int) -> None:
    """If the node count is not set, the job fails before it starts a Prefect server."""
    done = submitted(tmp_path, nodes, DRIVER_ENDS_WITH=str(code))
    assert done.returncode == code, done.stderr
    assert (tmp_path / "own-prefect").exists(), "it belongs to another user"
    assert not any((*(tmp_path / "temporary").iterdir(), *(tmp_path / "runs").iterdir()))
    if nodes:
        seen = dict(line.partition("=")[::2] for line in (tmp_path / "seen").read_text().splitlines())
        assert seen["PREFECT_HOME"] == f"{tmp_path}/temporary/prefect-7" and DATABASE not in seen
        server = " ".join(server_service(tmp_path, tmp_path / "starts").argv[1:]).format(port=20008)
        assert seen["ASKED"] == f"-P {server.replace('flows.', 'yatt.flows.')}", (
            "like a run's own, by its installed name"
        )
        assert seen["PREFECT_API_URL"] == "http://127.0.0.1:20008/api"


def test_a_slurm_job_does_not_wait_for_a_dead_prefect_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STAND_INS, "python", "exit 3")
    done = submitted(tmp_path, "1")
    assert done.returncode == 1 and done.stderr.endswith("prefect-7.log\n") and done.stderr.count("\n") == 1


def test_a_requeued_job_does_not_resume_a_paused_run() -> None:
    (line,) = re.findall(r"^yatt resume .*(?= &$)", SCRIPT.read_text(), re.MULTILINE)
    for restarts, said in (({}, "resume mine-1"), ({"SLURM_RESTART_COUNT": "1"}, "resume --unless-paused mine-1")):
        stand_in = f'set -u; yatt() {{ echo "$*"; }}; {line}'
        environment = {"RUN": "mine-1", **restarts}
        done = subprocess.run(["bash", "-c", stand_in], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == said
