"""The reference answers of an iteration's prompts.

Consumes the waves that the ledger records, from which the prompts follow, and the run's inputs; produces the answers by
ordinal of the prompt. Reads one small row group per prompt, however large the corpus is.
"""

from __future__ import annotations

import json
import threading
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from db.ledger import Ledger
from flows.run.home import Home
from ops.queries.experience import IterationExperience
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.experience.slicing import SLICES, RoundPlan
from yatt_core.inputs.manifest import INPUTS, MANIFEST
from yatt_core.inputs.reader import Inputs
from yatt_core.prompts.stream import Cursor, Prompt, draw
from yatt_core.protocols.receipts import PromptRef
from yatt_core.spec import RunSpec, parse_spec

NOT_RECORDED = "the draws of the iteration are not recorded"
OTHER_PROMPTS = "the run's inputs have other prompts than the experience"
Answers = dict[int, str | None]


def answers_of(ledger: Ledger, home: Home, place: IterationExperience, rows: pa.Table) -> tuple[Answers, str]:
    """Returns the reference answers of the samples' prompts, None for prompts without one, and why answers are missing.

    The reason is empty if none are missing.
    """
    wanted = dict(zip(rows["prompt_ordinal"].to_pylist(), rows["prompt_id"].to_pylist(), strict=True))
    if not wanted:
        return {}, ""
    manifest = home.run_folder(place.owner) / INPUTS / MANIFEST
    try:
        modified = manifest.stat().st_mtime_ns
        spec = json.dumps(ledger.runs.revision(place.owner).spec)
        source = _opened(manifest.parent, modified, place.owner, spec)
    except OSError as error:
        return {}, f"{manifest}: cannot be read: {error.strerror}"
    except (ConfigurationError, DataError) as error:
        return {}, str(error)
    drawn = source.drawn(ledger, place)
    if not drawn.keys() >= wanted.keys():
        return {}, NOT_RECORDED
    try:
        prompts = {ordinal: source.prompt(drawn[ordinal]) for ordinal in wanted}
    except DataError as error:
        return {}, str(error)
    found = {ordinal: prompt.answer for ordinal, prompt in prompts.items() if prompt.prompt_id == wanted[ordinal]}
    return found, "" if len(found) == len(wanted) else OTHER_PROMPTS


class _Source:
    """The prompts of a run's inputs. Thread-safe."""

    def __init__(self, folder: Path, spec: RunSpec) -> None:
        self._spec = spec
        self._inputs = Inputs.open(folder, spec)
        self._lock = threading.Lock()

    def drawn(self, ledger: Ledger, place: IterationExperience) -> dict[int, PromptRef]:
        """Returns the prompts that the iteration's waves drew, by ordinal; with slices, all to which responses went on."""
        found: dict[int, PromptRef] = {}
        for wave in ledger.records.waves(place.owner, place.branch, place.number):
            cursor = Cursor.from_json(wave.plan["cursor"])
            references, _ = draw(self._spec.data, self._spec.seed, cursor, wave.plan["prompts"])
            if SLICES in wave.plan:
                references = tuple(group.ref for group in RoundPlan.from_json(wave.plan[SLICES]).groups)
            found |= {reference.ordinal: reference for reference in references}
        return found

    def prompt(self, reference: PromptRef) -> Prompt:
        """Returns a prompt. Raises `DataError`."""
        with self._lock:
            return self._inputs.prompt(reference)


@lru_cache(maxsize=4)
def _opened(folder: Path, modified_ns: int, run: str, spec: str) -> _Source:
    """Opens a run's inputs, cached until they or the spec change."""
    return _Source(folder, parse_spec(json.loads(spec), f"the spec of run {run}"))
