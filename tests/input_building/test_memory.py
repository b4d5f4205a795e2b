"""A corpus passes through memory row by row, both while inputs are built and while prompts are drawn from them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.inputs.example_specs import VIRTUAL, run_spec

ROWS = 1600
BYTES_A_ROW = 50_000
DRAWN = 200
CORPUS_MB = 80
GROWTH_MB = 40
SCRIPT = """
import sys
from pathlib import Path
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.reader import Inputs
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.spec import RunSpec

def use(text, folder):
    spec = RunSpec.model_validate_json(text)
    materialise(spec, folder)
    inputs = Inputs.open(folder / "inputs", spec)
    references, _ = draw(spec.data, spec.seed, Cursor.start(spec.data), int(sys.argv[4]))
    print(sum(len(inputs.prompt(reference).text) for reference in references))
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(int(peak.split()[1]) // 1024)

use(sys.argv[1], Path(sys.argv[3], "small"))
use(sys.argv[2], Path(sys.argv[3], "large"))
"""


def write_source(path: Path, rows: int) -> dict[str, Any]:
    """Writes rows of text that hardly compress, and returns the source that reads them."""
    noise = np.random.default_rng(0)
    texts = (noise.bytes(BYTES_A_ROW // 2).hex() for _ in range(rows))
    if path.suffix == ".jsonl":
        with path.open("w") as stream:
            stream.writelines(json.dumps({"prompt": text}) + "\n" for text in texts)
        return {"kind": "jsonl", "path": str(path)}
    with pq.ParquetWriter(path, pa.schema([("prompt", pa.string())])) as writer:
        writer.write_table(pa.table({"prompt": list(texts)}), row_group_size=100)
    return {"kind": "parquet", "path": str(path)}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_corpus_is_never_held_in_memory(tmp_path: Path, suffix: str) -> None:
    """Compared with a corpus of twenty rows, one of 80 MB takes extra memory of only a fraction of its size."""
    sources = [write_source(tmp_path / f"{rows}.{suffix}", rows) for rows in (20, ROWS)]
    data = {"held_out": 4, "probe": 4, "max_prompt_tokens": BYTES_A_ROW}
    specs = [run_spec(source, data=data, **VIRTUAL).model_dump_json() for source in sources]
    command = [sys.executable, "-c", SCRIPT, *specs, str(tmp_path), str(DRAWN)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    _, before, read, after = map(int, printed.split())
    assert read == DRAWN * BYTES_A_ROW and ROWS * BYTES_A_ROW == CORPUS_MB * 1e6
    assert after - before < GROWTH_MB, f"{before} MB, then {after} MB"
