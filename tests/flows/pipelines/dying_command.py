"""`python -m tests.flows.pipelines.dying_command JOB WORDS...`: `yatt WORDS...`, killed between a job and its record."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any
from unittest import mock

from db.write.pipelines import JobRow, Pipelines
from ops.cli.main import main


def run(job: str) -> int:
    own = Pipelines.end

    def end(pipelines: Pipelines, attempt: JobRow, **others: Any) -> None:
        if attempt.job == job:
            os.kill(os.getpid(), signal.SIGKILL)
        own(pipelines, attempt=attempt, **others)

    with mock.patch.object(Pipelines, "end", end):
        return main()


if __name__ == "__main__":
    sys.exit(run(sys.argv.pop(1)))
