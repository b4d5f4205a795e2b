"""What `yatt init` asks of a file or folder: is it a corpus, a knowledge graph's triples, or a graph of nodes in arrays?

Each function implements `yatt_core.workloads.contract.Recogniser`. A folder with the files of a workload is read by the
workload's own reader, so that what is recognised can be learnt from. A folder that has only some of these files, but such as
few other folders have, is meant for the workload too: the error names what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from yatt_core.workloads.contract import Recognition
from yatt_workloads.given_files import readable
from yatt_workloads.kge.triples import SPLITS, TRAIN, read_triples
from yatt_workloads.retrieval.records import DOCUMENTS, QUERIES, read_records
from yatt_workloads.unimp.node_graph import NAMES, read_arrays

FIRST_LINES = 10
"""Lines by which a file is taken for one of triples."""
CORPUS_FILES = (DOCUMENTS, QUERIES)
TRIPLE_FILES = tuple(f"{split}.txt" for split in SPLITS)
NODE_FILES = tuple(f"{name}.npy" for name in NAMES)
EDGES = "edges.npy"


def corpus(path: Path) -> Recognition | None:
    """Recognises a folder with `documents.jsonl` and `queries.jsonl`."""
    if not _files(path, CORPUS_FILES):
        return None
    _require_all(path, CORPUS_FILES, "a corpus")
    documents, queries = read_records(path)
    what = f"a corpus of {len(documents)} documents and {len(queries)} queries"
    settings = {"corpus": str(path), "method": "self"}
    return _recognised(what, "yatt_workloads.retrieval.workload:Retrieval", settings, iterations=40, every=10)


def triples(path: Path) -> Recognition | None:
    """Recognises a folder with `train.txt`, `valid.txt` and `test.txt`: head, relation and tail in a line, separated by tabs."""
    there = _files(path, TRIPLE_FILES)
    begun = [name for name in there if _begins_with_triples(path / name)]
    whole = there == list(TRIPLE_FILES) and f"{TRAIN}.txt" in begun
    if not whole and len(begun) < 2:
        return None
    _require_all(path, TRIPLE_FILES, "a knowledge graph")
    splits, (entities, relations) = read_triples(path)
    count = sum(map(len, splits.values()))
    what = f"a knowledge graph of {count} triples, {len(entities)} entities and {len(relations)} relations"
    settings = {"folder": str(path), "members": [{"model": "note"}]}
    return _recognised(what, "yatt_workloads.kge.workload:KnowledgeGraphEmbeddings", settings, iterations=24, every=4)


def node_graph(path: Path) -> Recognition | None:
    """Recognises a folder with `features.npy`, `edges.npy`, `labels.npy` and `splits.npy`."""
    there = _files(path, NODE_FILES)
    if len(there) < (2 if EDGES in there else len(NODE_FILES) - 1):
        return None
    _require_all(path, NODE_FILES, "a graph of nodes")
    arrays = read_arrays(path)
    what = f"a graph of {len(arrays['features'])} nodes and {len(arrays['edges'])} edges"
    settings = {"folder": str(path)}
    return _recognised(what, "yatt_workloads.unimp.workload:NodeLabels", settings, iterations=30, every=5)


def _files(folder: Path, names: Sequence[str]) -> list[str]:
    """Returns which of the names are files of a folder."""
    return [name for name in names if (folder / name).is_file()]


def _require_all(folder: Path, names: Sequence[str], what: str) -> None:
    """Raises `ValueError` for a folder that lacks one of the files."""
    there = _files(folder, names)
    lacking = [
        f"{name} is {'no regular file' if (folder / name).exists() else 'missing'}"
        for name in names
        if name not in there
    ]
    if lacking:
        raise ValueError(f"{folder}: looks like {what} ({', '.join(there)}), but {' and '.join(lacking)}")


def _begins_with_triples(file: Path) -> bool:
    """Returns whether most of the first lines have three parts: files of other texts have these names too."""
    with readable(file), file.open(encoding="utf-8", errors="replace") as stream:
        lines = list(islice(stream, FIRST_LINES))
    return 2 * sum(line.count("\t") == 2 for line in lines) > len(lines)


def _recognised(what: str, kind: str, settings: Mapping[str, Any], iterations: int, every: int) -> Recognition:
    spec = {
        "iterations": iterations,
        "workload": {"kind": kind, "settings": settings},
        "trainer": {"engine": {"kind": "torch", "ranks": 1}},
        "checkpoints": {"every": every},
        "evaluation": {"every": every},
    }
    return Recognition(what, spec)
