"""The Slurm template: run as it is, with stand-ins for what it calls."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from flows.prefect_server import server_service
from tests.services import ROOT

SCRIPT = ROOT / "ops" / "deploy" / "slurm" / "yatt.sbatch"
STAND_INS = {
    "scontrol": "echo node-1",
    "srun": 'case "$*" in *ip-address*) echo 127.0.0.1;; *) exec sleep 60;; esac',
    "python": 'mkdir "$PREFECT_HOME"; { env; echo "ASKED=$*"; } > "$SEEN"; exec sleep 60',
    "curl": 'test -s "$SEEN"',
    "yatt": 'exit "$DRIVER_ENDS_WITH"',
}


def test_the_slurm_template_is_a_script_and_keeps_what_its_directives_promise() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    text = SCRIPT.read_text()
    directives = re.findall(r"^#SBATCH --([\w-]+)", text, re.MULTILINE)
    assert {"signal", "requeue", "nodes", "time"} <= set(directives)
    assert "--host 127.0.0.1" in text and "0.0.0.0" not in text
    assert "umask 077" in text.partition('> "$token"')[0], "the token is its owner's alone"


@pytest.mark.parametrize(("nodes", "code"), [("", 1), ("1", 0), ("1", 4)], ids=["too early", "done", "paused"])
def test_a_slurm_job_removes_its_own_files_and_nothing_else(tmp_path: Path, nodes: str, code: int) -> None:
    """Without a number of nodes it fails before it has a Prefect server."""
    names = ("bin", "temporary", "runs", "own-prefect", "work")
    programs, temporary, runs, own, work = (tmp_path / name for name in names)
    for folder in (programs, temporary, runs, own, work):
        folder.mkdir()
    for name, body in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    database = "PREFECT_API_DATABASE_CONNECTION_URL"
    (tmp_path / "yatt.env").write_text(f"YATT_HOME={runs}\nPREFECT_HOME={own}\n{database}=postgresql://HOST/prefect\n")
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin", "TMPDIR": str(temporary), "RUN": "mine-1", "SEEN": str(tmp_path / "seen"),
        "YATT_ENVIRONMENT": str(tmp_path / "yatt.env"), "DRIVER_ENDS_WITH": str(code),
        "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node-1",
    }  # fmt: skip
    if nodes:
        environment["SLURM_JOB_NUM_NODES"] = nodes
    done = subprocess.run(["bash", str(SCRIPT)], env=environment, cwd=work, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert own.exists(), "somebody else's"
    assert list(temporary.iterdir()) == list(runs.iterdir()) == []
    if nodes:
        seen = dict(line.partition("=")[::2] for line in (tmp_path / "seen").read_text().splitlines())
        assert seen["PREFECT_HOME"] == f"{temporary}/prefect-7" and database not in seen
        server = " ".join(server_service(tmp_path).argv[1:]).format(port=20008)
        assert seen["ASKED"] == f"-P {server}", "as a run's own"
        assert seen["PREFECT_API_URL"] == "http://127.0.0.1:20008/api"


def test_a_job_that_was_queued_again_leaves_a_paused_run_to_a_person() -> None:
    (line,) = re.findall(r"^yatt resume .*(?= &$)", SCRIPT.read_text(), re.MULTILINE)
    for restarts, said in (({}, "resume mine-1"), ({"SLURM_RESTART_COUNT": "1"}, "resume --unless-paused mine-1")):
        stand_in = f'set -u; yatt() {{ echo "$*"; }}; {line}'
        environment = {"RUN": "mine-1", **restarts}
        done = subprocess.run(["bash", "-c", stand_in], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == said
