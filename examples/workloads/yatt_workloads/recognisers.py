"""What `yatt init` asks of a file or folder: is it a corpus, a knowledge graph's triples, or a graph of nodes in arrays?

Each function implements `yatt_core.workloads.contract.Recogniser`. A folder with the files of a workload is read by the
workload's own reader, so that what is recognised can be learnt from.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from yatt_core.workloads.contract import Recognition
from yatt_workloads.kge.triples import SPLITS, TRAIN, read_triples
from yatt_workloads.retrieval.records import DOCUMENTS, QUERIES, read_records
from yatt_workloads.unimp.node_graph import NAMES, read_arrays

FIRST_LINES = 10
"""Lines by which a file is taken for one of triples."""


def corpus(path: Path) -> Recognition | None:
    """Recognises a folder with `documents.jsonl` and `queries.jsonl`."""
    if not _has(path, (DOCUMENTS, QUERIES)):
        return None
    documents, queries = read_records(path)
    what = f"a corpus of {len(documents)} documents and {len(queries)} queries"
    settings = {"corpus": str(path), "method": "self"}
    return _recognised(what, "yatt_workloads.retrieval.workload:Retrieval", settings, iterations=40, every=10)


def triples(path: Path) -> Recognition | None:
    """Recognises a folder with `train.txt`, `valid.txt` and `test.txt` with triples."""
    if not _has(path, [f"{split}.txt" for split in SPLITS]) or not _begins_with_triples(path / f"{TRAIN}.txt"):
        return None
    splits, (entities, relations) = read_triples(path)
    count = sum(map(len, splits.values()))
    what = f"a knowledge graph of {count} triples, {len(entities)} entities and {len(relations)} relations"
    settings = {"folder": str(path), "members": [{"model": "note"}]}
    return _recognised(what, "yatt_workloads.kge.workload:KnowledgeGraphEmbeddings", settings, iterations=24, every=4)


def node_graph(path: Path) -> Recognition | None:
    """Recognises a folder with `features.npy`, `edges.npy`, `labels.npy` and `splits.npy`."""
    if not _has(path, [f"{name}.npy" for name in NAMES]):
        return None
    arrays = read_arrays(path)
    what = f"a graph of {len(arrays['features'])} nodes and {len(arrays['edges'])} edges"
    settings = {"folder": str(path)}
    return _recognised(what, "yatt_workloads.unimp.workload:NodeLabels", settings, iterations=30, every=5)


def _has(folder: Path, names: tuple[str, ...] | list[str]) -> bool:
    return all((folder / name).is_file() for name in names)


def _begins_with_triples(file: Path) -> bool:
    """Returns whether most of the first lines have three parts: files of other texts have these names too."""
    with file.open(encoding="utf-8", errors="replace") as stream:
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
