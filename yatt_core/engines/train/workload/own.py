"""A class of the public contract as the trainer's engine sees it: its columns are sealed, its metrics checked, its state saved.

Consumes the number of an iteration's draw, and columns that it has sealed itself; produces the state of the next version.
Everything that an update depends on is in the workload's state, which is saved and loaded whole.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from yatt_core.checkpoints.contents import OTHERS, WEIGHTS, WORKLOAD
from yatt_core.engines.device import prepared_device
from yatt_core.engines.train.base.buffers import FreezeBuffers
from yatt_core.engines.train.base.kept_receipt import SKIPPED
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.process_group import lost_group, open_process_group
from yatt_core.engines.train.workload.ranks import WorkloadRanks
from yatt_core.engines.train.workload.state import (
    NotFinite,
    digest_of_weights,
    encode_facts,
    not_finite_in,
    parts_of,
    require_finite,
    require_sound,
)
from yatt_core.errors import ConfigurationError, InfrastructureError, NumericError
from yatt_core.experience.prepared import PREPARED_KIND, publish_prepared, rank_file, read_prepared_files
from yatt_core.inputs.manifest import START
from yatt_core.manifests import load_manifest
from yatt_core.protocols.engines import FrozenState, NeededTensor, RankContext
from yatt_core.protocols.receipts import (
    READ_BYTES,
    BatchTask,
    PrepareReceipt,
    RowsReceipt,
    RowsTask,
)
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.metric_names import is_timing
from yatt_core.workloads.columns import COLUMNS, COLUMNS_DIGEST, columns_digest, decode_columns, encode_columns
from yatt_core.workloads.contract import (
    Columns,
    Continues,
    Draw,
    Samples,
    SharesModel,
    Shows,
    ShowsImages,
    State,
    Tabulates,
    Workload,
)
from yatt_core.workloads.finding import called, continue_from, make_workload, shares_model, verify_workload
from yatt_core.workloads.images import encode_images, images_are_there, publish_images
from yatt_core.workloads.listings import SHOWN, encode_listing, plain_listing, plain_listings
from yatt_core.workloads.metric_names import require_metric_name
from yatt_core.workloads.sampled_files import images_of, joined_columns
from yatt_core.workloads.saved import read_state
from yatt_core.workloads.trained import Changed, Fingerprint, Learnt
from yatt_core.workloads.turns import turn_of

R = TypeVar("R")
log = logging.getLogger(__name__)
EVALUATION = "evaluation/"
WEIGHTS_DIGEST = "weights_digest"
LOST = "lost"
KEPT = "kept"
"""What rank 0 tells the others of an iteration's images."""
RESERVED = (SKIPPED, f"update/{SKIPPED}", COLUMNS_DIGEST, WEIGHTS_DIGEST)
"""Names in an update's fingerprint, or beside its metrics, that a metric of its own may not have."""


class OwnWorkload:
    """Implements `TrainedWorkload` and `Evaluates` with a class of the contract (`workloads/contract.py`)."""

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        self._device = prepared_device(spec)
        self._spec = spec
        self._context = context
        self._collective = Collective()
        self._workload: Workload | None = None
        self._buffers = FreezeBuffers()
        self._shares = False
        self._not_finite = NotFinite()

    @property
    def copies_alone(self) -> bool:
        """False: ranks may exchange something for their state."""
        return False

    def verify(self) -> None:
        """Raises as `verify_workload` does."""
        verify_workload(self._spec, self._context.run_folder)

    def connect(self, rank: int, ranks: int, address: str, changed: Changed) -> None:
        """Joins the group of ranks; the class keeps its state, and its view of the ranks."""
        self._collective.connect(rank=rank, ranks=ranks, address=address, device=self._device)
        self._shares = shares_model(self._spec, self._context.run_folder)
        if not self._shares:
            return
        open_process_group(self._collective)
        if self._workload is not None:
            changed()  # until its tensors are divided over the new group
            self._regroup(self._workload)

    def require_ready(self) -> None:
        """Raises `InfrastructureError` before it has begun."""
        self._begun()

    def begin(self) -> None:
        """Has the class begin anew."""
        self._begin()

    def prepare(self, task: BatchTask) -> PrepareReceipt | None:
        """Has the iteration's columns drawn and, by a workload that samples, sampled. Rank 0 seals those of all ranks.

        What samplers have sealed, the task's shards, takes the place of what the ranks would sample.
        """
        workload = self._begun()
        started = time.perf_counter()
        draw = self._draw(task)
        columns: Columns = {} if task.shards else self._called(workload.draw, draw)
        place = f"workload.kind: {self._spec.workload.title}"
        shown: list[bytes] = []
        if task.shards:
            own = WorkloadRanks(self._collective).share(len(task.shards))
            columns = joined_columns(self._context.run_folder, task.shards, own)
            contents = self._collective.collected(encode_columns(columns, f"{place}: sample_shard"))
            if self._collective.rank == 0:
                shown = images_of(self._context.run_folder, task.shards)
        elif isinstance(workload, Samples):
            columns = self._called(workload.sample, columns, draw)
            contents = self._collective.collected(encode_columns(columns, f"{place}: sample"))
            if isinstance(workload, ShowsImages):
                images = self._called(workload.images, columns, draw)
                shown = self._collective.collected(encode_images(images, f"{place}: images"))
        else:
            contents = [encode_columns(columns, f"{place}: draw")]
        if self._collective.rank > 0:
            return None
        pictures = publish_images(self._context.run_folder, task.key, task.term, shown) if shown else ""
        folder, files = publish_prepared(
            run_folder=self._context.run_folder,
            key=task.key,
            term=task.term,
            contents=contents,
            suffix=COLUMNS,
            others=self._in_words(workload, columns),
        )
        return PrepareReceipt(
            key=task.key,
            folder=folder,
            files=files,
            metrics={},
            timing={"seconds": time.perf_counter() - started},
            reward_moments=task.reward_moments,
            coefficients=task.coefficients,
            images=pictures,
        )

    def learn(self, task: BatchTask, prepared: PrepareReceipt, changed: Changed) -> Learnt:
        """Has the class learn from sealed columns. Raises `NumericError` for a metric or a weight that is not finite."""
        workload = self._begun()
        started = time.perf_counter()
        own = self._collective.rank if isinstance(workload, Samples) else 0
        name = rank_file(own, COLUMNS)
        (data,) = read_prepared_files(self._context.run_folder, prepared.folder, prepared.files, [name])
        columns = decode_columns(data, f"{prepared.folder}/{name}")
        loaded = time.perf_counter()
        if prepared.images and isinstance(workload, ShowsImages) and isinstance(workload, Samples):
            self._draw_lost_images(workload, columns, task, prepared)
        changed()
        metrics = self._finite(self._called(workload.update, columns, self._draw(task)), "update")
        self._require_free(metrics)
        weights = self._state(workload).weights
        require_finite(weights, self._not_finite, self._collective, f"workload.kind: {self._spec.workload.title}")
        fingerprint: dict[str, float | str] = {
            **metrics,
            COLUMNS_DIGEST: columns_digest(prepared.files),
            WEIGHTS_DIGEST: digest_of_weights(weights, self._collective),
        }
        return Learnt(metrics, fingerprint, {"load": loaded - started, READ_BYTES: float(len(data))})

    def evaluate(self, task: RowsTask) -> RowsReceipt:
        """Has the workload evaluate its state; the metrics are below `evaluation/`, and its tables beside them."""
        workload = self._begun()
        metrics = self._finite(self._called(workload.evaluate), "evaluate")
        tables: dict[str, dict[str, Any]] = {}
        if isinstance(workload, Tabulates):
            place = f"workload.kind: {self._spec.workload.title}: tables"
            tables = plain_listings(self._called(workload.tables), place)
        return RowsReceipt(task.key, 0, {f"{EVALUATION}{name}": value for name, value in metrics.items()}, tables)

    def skip(self, iteration: int) -> Fingerprint:
        """Leaves the state as it is."""
        return {WEIGHTS_DIGEST: self.weights_digest()}

    def weights_digest(self) -> str:
        """Returns the digest of the weights, on every rank."""
        return self._digest(self._begun())

    def freeze(self, version: int) -> FrozenState:
        """Copies this rank's share of the state into buffers that are reused."""
        state = self._state(self._begun())
        rank = self._collective.rank
        ranks = self._collective.ranks
        tensors = {
            subfolder: self._buffers.fill(subfolder, parts_of(named, rank, ranks), rank)
            for subfolder, named in ((WEIGHTS, state.weights), (OTHERS, state.others))
        }
        files = {WORKLOAD: encode_facts(version, state.facts)} if rank == 0 else {}
        return FrozenState(rank, ranks, {name: parts for name, parts in tensors.items() if parts}, files)

    def needed(self, folder: Path) -> Iterator[NeededTensor]:
        """Yields all tensors: which of their rows a class reads is its own affair."""
        saved = read_state(folder)
        yield from (NeededTensor(WEIGHTS, name) for name in saved.weights.shapes)
        yield from (NeededTensor(OTHERS, name) for name in saved.others.shapes)

    def load(self, folder: Path, version: int, changed: Changed) -> None:
        """Loads what writers of `freeze` wrote; continues bit for bit."""
        saved = read_state(folder, version)
        changed()
        workload = self._workload or self._begin()
        self._called(workload.load, saved)

    # -- internals ----------------------------------------------------------------------------------------------------

    def _begin(self) -> Workload:
        workload = make_workload(self._spec, self._context.run_folder, str(self._device))
        inputs = self._context.inputs_folder
        self._called(workload.begin, inputs, WorkloadRanks(self._collective))
        if self._spec.workload.start is not None and isinstance(workload, Continues):
            continue_from(self._spec, self._called, workload, read_state(inputs / START))
        self._not_finite = not_finite_in(self._state(workload).weights)
        self._workload = workload
        return workload

    def _regroup(self, workload: Workload) -> None:
        """Has a class go on in another process-wide group."""
        if isinstance(workload, SharesModel):
            self._called(workload.regroup)

    def _called(self, method: Callable[..., R], *given: Any) -> R:
        """Returns what a method of the workload returns, as `called` does; a lost rank is no fault of the workload."""
        if not self._shares:
            return called(self._spec, method, *given)

        @wraps(method)
        def guarded(*arguments: Any) -> R:
            with lost_group(self._collective):
                return method(*arguments)

        return called(self._spec, guarded, *given)

    def _begun(self) -> Workload:
        if self._workload is None:
            raise InfrastructureError("the workload has no state yet: initialise or restore it first")
        return self._workload

    def _in_words(self, workload: Workload, columns: Columns) -> dict[str, bytes]:
        """Returns the file that says what this rank's columns are, if the workload says it; no result depends on it."""
        if not isinstance(workload, Shows):
            return {}
        found = self._called(workload.shown, columns)
        return {SHOWN: encode_listing(plain_listing(found, f"workload.kind: {self._spec.workload.title}: shown"))}

    def _draw_lost_images(self, workload: Samples, columns: Columns, task: BatchTask, prepared: PrepareReceipt) -> None:
        """Has the images of an iteration drawn again if their files are lost: under the weights before its update.

        columns: what is sealed for this rank.
        """
        folder = self._context.run_folder / prepared.folder
        # They are on the disk of rank 0, which decides for all.
        lost = self._collective.rank == 0 and not images_are_there(folder, prepared.images)
        if self._collective.tell(LOST if lost else KEPT) == KEPT:
            return
        assert isinstance(workload, ShowsImages), "there were images"
        draw = self._draw(task)
        self._called(workload.sample, self._called(self._begun().draw, draw), draw)
        place = f"workload.kind: {self._spec.workload.title}: images"
        shown = self._collective.collected(encode_images(self._called(workload.images, columns, draw), place))
        if self._collective.rank > 0:
            return
        term = int(load_manifest(folder, PREPARED_KIND).fields["term"])
        if publish_images(self._context.run_folder, prepared.key, term, shown) == prepared.images:
            log.warning("%s: its images were lost and have been drawn again", prepared.folder)
        else:
            log.warning("%s: its images were lost, and those drawn again are others", prepared.folder)

    def _draw(self, task: BatchTask) -> Draw:
        (drawn,) = task.rows
        return turn_of(self._spec, task.key, drawn.ordinal)

    def _state(self, workload: Workload) -> State:
        state: State = self._called(workload.state)
        require_sound(state, self._spec.workload.title)
        return state

    def _digest(self, workload: Workload) -> str:
        return digest_of_weights(self._state(workload).weights, self._collective)

    def _require_free(self, metrics: Mapping[str, float]) -> None:
        """Raises `ConfigurationError` for a metric of an update whose name YATT gives a meaning of its own."""
        for name in metrics:
            if name in RESERVED or name.startswith(EVALUATION) or is_timing(name):
                raise ConfigurationError(
                    f"workload.kind: {self._spec.workload.title}: update returned a metric called {name!r}, which is YATT's own "
                    f"name; expected none of {', '.join(RESERVED)}, none below {EVALUATION}, and none of YATT's timings"
                )

    def _finite(self, metrics: Mapping[str, Any], method: str) -> dict[str, float]:
        """Returns metrics as numbers. Raises `NumericError` for one that is not finite.

        Raises `ConfigurationError` for no number, and for a name that trackers refuse.
        """
        place = f"workload.kind: {self._spec.workload.title}: {method}"
        if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
            raise ConfigurationError(f"{place} returned {metrics!r}; expected numbers by name")
        found = {}
        for name in sorted(metrics):
            require_metric_name(name, place)
            try:
                if isinstance(metrics[name], str | bytes | bytearray):
                    raise TypeError("a text")
                found[name] = float(metrics[name])
            except (TypeError, ValueError) as error:
                raise ConfigurationError(f"{place} returned {metrics[name]!r} as {name}; expected a number") from error
            if not math.isfinite(found[name]):
                raise NumericError(f"{place} returned {name} {found[name]}, which is not finite")
        return found
