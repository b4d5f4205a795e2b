"""Files with code that a spec names: each run keeps a copy of every one of them, and executes only this copy.

Consumes the digests in a spec, and the named files as long as a run has no copy of its own. Produces `code/SHA256/`
in the run's folder, on both storage tiers: the file and its manifest. Contents with another digest are never executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from yatt_core import durable
from yatt_core.algorithms.advantages.custom import CustomAdvantage
from yatt_core.algorithms.losses.custom import CustomLoss
from yatt_core.algorithms.own import ADVANTAGES, LOSSES, SOURCES, WORKLOADS, own_file
from yatt_core.manifests import MANIFEST, entry_of_bytes, publish_manifest
from yatt_core.named_code import CODE, COPY, CodeFile, read_code
from yatt_core.rewards.functions import part_file
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.data import FunctionSource
from yatt_core.storage.run_store import RunStore
from yatt_core.tools.registry import tool_file


def code_files(spec: RunSpec) -> list[CodeFile]:
    """Returns the files that a spec names, each with the key that names it."""
    return [code for code in _named(spec) if code is not None]


def settle_code(spec: RunSpec, run_folder: Path, store: RunStore, parent: Path | None = None) -> None:
    """Gives a run its copies of the files that its spec names, on both storage tiers; existing copies are kept.

    parent: folder of the run from which a fork has its files.

    Raises as `read_code` does. Safe to call again, and by several processes at once.
    """
    fetch_code(spec, run_folder, store)
    for code in code_files(spec):
        if not (run_folder / code.folder / MANIFEST).exists():
            data = read_code(code, parent)[1]
            folder = run_folder / code.folder
            durable.make_folder(folder)
            durable.write_file(folder / COPY, data)
            publish_manifest(folder, CODE, {}, {COPY: entry_of_bytes(data)})
        store.publish(code.folder)


def fetch_code(spec: RunSpec, run_folder: Path, store: RunStore) -> None:
    """Fetches the copies that a run's folder lacks, if the durable tier has them."""
    for code in code_files(spec):
        if not (run_folder / code.folder / MANIFEST).exists():
            store.fetch(code.folder)


def _named(spec: RunSpec) -> Iterator[CodeFile | None]:
    for part in spec.rewards.functions:
        yield part_file(part)
    yield own_file(spec.workload, WORKLOADS)
    loss = spec.algorithm.loss
    advantage = spec.algorithm.advantage
    if isinstance(loss, CustomLoss):
        yield own_file(loss, LOSSES)
    if isinstance(advantage, CustomAdvantage):
        yield own_file(advantage, ADVANTAGES)
    for source in spec.data.sources:
        if isinstance(source, FunctionSource):
            yield own_file(source, SOURCES)
    for tool in spec.rollout.tools.functions if spec.rollout.tools else ():
        yield tool_file(tool)
    for number, callback in enumerate(spec.callbacks):
        if callback.file is not None:
            yield CodeFile.named(f"callbacks.{number}.file", callback.file, callback.sha256)
