"""Answers the contract's batch in a separate process: `python -m tests.engines.rollout.fresh_process NAME FOLDER`."""

import sys
from pathlib import Path

from tests.engines.rollout.cases import build_case, prompts_of, request_of, result_digest

if __name__ == "__main__":
    case = build_case(sys.argv[1], Path(sys.argv[2]))
    sys.stdout.write(result_digest(case.engine.generate(request_of(prompts_of([3, 9, 20, 70]), samples=4))))
