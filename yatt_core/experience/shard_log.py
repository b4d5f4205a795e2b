"""The log of one logical shard: grows in chunks, is then sealed, and survives a kill at any time.

Consumes a table of responses and one of scores per decode batch (preceded by the log of its turns if responses
have several: `turn_log`), and makes each table durable before returning. Sealing compacts them into
`samples.parquet` and publishes the manifest last: a shard is finished when its manifest is durable. A process
that takes over the shard, under the same term or a later one, finds chunks and sealed shards here, so that
nothing finished is generated or scored again. Each writer has its own folder, since a writer that is considered
lost may still be running on an unreachable node.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from yatt_core import durable
from yatt_core.errors import DataError, FencedError
from yatt_core.experience.batch import SAMPLES_FILE, SHARD_KIND, load_table
from yatt_core.experience.carried import CARRIED_FILE, GoingGroups, carried_digests, read_carried
from yatt_core.experience.chunks import Chunk, read_chunk, write_chunk
from yatt_core.experience.joined_turn_log import JoinedTurnLog
from yatt_core.experience.judge_log import JudgeLog
from yatt_core.experience.shard_work import shard_work, work_fields
from yatt_core.experience.table import (
    STRETCH_TOKENS,
    STRETCH_VERSIONS,
    canonical_table,
    group_digests,
    group_facts,
    group_offsets,
    is_scored,
    sort_samples,
    sums_of,
)
from yatt_core.experience.turn_log import TurnLog
from yatt_core.keys import SHARD_NAME, WorkKey, iteration_folder, shard_folder
from yatt_core.manifests import MANIFEST, Manifest, entry_of_bytes, load_manifest, publish_manifest, verify_files
from yatt_core.protocols.receipts import GroupFacts, LearntFacts, ShardReceipt, ShardRef, ShardWork, SliceFacts
from yatt_core.wire.columns import fixed_column, ragged_column

JUDGEMENTS_FILE = "judgements.parquet"
_log = logging.getLogger(__name__)
_FOLDER = re.compile(SHARD_NAME + r"(?:\.(\d+))?")
_REPEATED = ["prompt_id", "prompt", "part"]
_TRASH = re.compile(rf"\.{SHARD_NAME}\..+")


class ShardLog:
    """One shard under one term. Claims its own folder at the first write and never changes other writers' folders.

    plan: the digest of the inputs that determine the samples (`shard_plan`); leftovers from another plan do not
        count.
    writers: how many writers the shard may have had under this term on other disks, so that no two have the same name.

    Raises `FencedError` if a later term has started on this shard.
    """

    def __init__(self, run_folder: Path, key: WorkKey, term: int, plan: str = "", writers: int = 0) -> None:
        self._run_folder = run_folder
        self._key = key
        self._term = term
        self._plan = plan
        self._writers = writers
        written = _written_folders(run_folder, key)
        if written and written[0][0] > term:
            raise FencedError(f"{key}: term {written[0][0]} works on this shard; the holder of term {term} must exit")
        self._folders = [run_folder / folder for _, folder in written]
        for folder in self._folders:
            # Its writer may have died before the name of the newest chunk was durable, and later work will depend
            # on that chunk.
            durable.sync_folder(folder)
        self._own: Path | None = None
        self._answered: dict[int, str] = {}

    def responses(self, batch: int) -> pa.Table | None:
        """Returns the responses of a decode batch from this term or the latest earlier term that has them."""
        for folder in self._folders:
            chunk = read_chunk(_chunk_path(folder, batch, "responses"))
            if chunk is not None and chunk.labels.get("plan") == self._plan:
                self._answered[batch] = chunk.sha256
                return chunk.table
        return None

    def slice(self, batch: int) -> pa.Table | None:
        """Returns what the responses of a decode batch have after its slice, from the latest term that has it."""
        for folder in self._folders:
            chunk = read_chunk(_chunk_path(folder, batch, "slice"))
            if chunk is not None and chunk.labels.get("plan") == self._plan:
                return chunk.table
        return None

    def append_slice(self, batch: int, table: pa.Table) -> None:
        """Makes durable what the responses of a decode batch have after its slice."""
        self._append(batch, "slice", table, {"plan": self._plan})

    def turns(self, batch: int) -> TurnLog:
        """Returns the log of a decode batch's turns, for responses with several turns."""
        return TurnLog(self._folders, batch, self._plan, self._own_folder)

    def joined_turns(self, batch: int) -> JoinedTurnLog:
        """Returns the log of a decode batch's turns, for responses that go from turn to turn each for itself."""
        return JoinedTurnLog(self._folders, batch, self._plan, self._own_folder)

    def judgements(self, batch: int, complete: Sequence[int] | None = None) -> JudgeLog:
        """Returns the log of the verdicts on a decode batch's responses.

        complete: with slices, the prompts whose groups are judged: another writer's slice may have completed others, whose
            verdicts have the same numbers and do not count. None if all groups are judged.
        """
        plan = self._plan if complete is None else f"{self._plan}:{','.join(map(str, complete))}"
        return JudgeLog(self._folders, batch, plan, self._own_folder)

    def scores(self, batch: int) -> pa.Table | None:
        """Returns the scores that belong to exactly the responses in this log for the batch; None if there are none."""
        if batch not in self._answered and self.responses(batch) is None:
            return None
        for folder in self._folders:
            chunk = read_chunk(_chunk_path(folder, batch, "scores"))
            if chunk is not None and _belongs(chunk, self._answered[batch]):
                return chunk.table
        return None

    def append_responses(self, batch: int, table: pa.Table) -> None:
        """Makes the responses of a decode batch durable."""
        self._answered[batch] = self._append(batch, "responses", table, {"plan": self._plan})

    def append_scores(self, batch: int, table: pa.Table) -> None:
        """Makes the scores of a decode batch durable. Raises `DataError` if its responses are not in the log."""
        if batch not in self._answered and self.responses(batch) is None:
            raise DataError(f"{self._key}: scores of batch {batch} without its responses; append those first")
        self._append(batch, "scores", table, {"responses": self._answered[batch]})

    def seal(
        self,
        table: pa.Table,
        timing: Mapping[str, float],
        judgements: pa.Table | None = None,
        judged_here: Collection[str] = (),
        going: GoingGroups | None = None,
    ) -> ShardReceipt:
        """Compacts the shard and publishes its manifest; a shard already sealed under this term is left as is.

        table: all samples with all result columns, in any order.
        timing: seconds by stage, for the receipt only.
        judgements: all verdicts in canonical order; None for a run without judges.
        judged_here: reward parts whose judges run on the run's devices.
        going: what a slice has made of the shard's groups; None if they are drawn whole.

        Raises `DataError` for samples that `canonical_table` rejects.
        """
        table = canonical_table(table)
        for term, sealed in find_sealed(self._run_folder, self._key):
            if term == self._term:
                receipt = _adopt_folder(
                    run_folder=self._run_folder, key=self._key, term=term, folder=sealed, plan=self._plan
                )
                if receipt is not None:
                    return receipt
        folder = self._own_folder()
        contents = {SAMPLES_FILE: _parquet_bytes(table)}
        if judgements is not None:
            contents[JUDGEMENTS_FILE] = _parquet_bytes(judgements)
        carried = None if going is None else sort_samples(going.table.combine_chunks())
        if carried is not None:
            contents[CARRIED_FILE] = _parquet_bytes(carried)
        for name, data in contents.items():
            # Their names are durable with that of the manifest. A manifest without its files, as a crash of the machine may
            # leave it, is not adopted.
            durable.write_file(folder / name, data, named=False)
        fields = _facts(key=self._key, term=self._term, plan=self._plan, table=table, carried=carried)
        if going is not None:
            fields["slices"] = _slice_facts(going, table)
        sums = sums_of(table)
        files = {name: entry_of_bytes(content) for name, content in contents.items()}
        work = {} if judgements is None else {"work": work_fields(shard_work(table, judgements, judged_here, going))}
        manifest_sha256 = publish_manifest(folder, SHARD_KIND, {**fields, "sums": sums, **work}, files)
        _remove_unnamed(folder)
        relative = str(folder.relative_to(self._run_folder))
        return _receipt(
            key=self._key,
            term=self._term,
            folder=relative,
            manifest_sha256=manifest_sha256,
            facts=fields,
            sums=sums,
            timing=timing,
        )

    def _append(self, batch: int, kind: str, table: pa.Table, labels: Mapping[str, str]) -> str:
        return write_chunk(_chunk_path(self._own_folder(), batch, kind), table, labels)

    def _own_folder(self) -> Path:
        """Returns the folder that only this log writes to."""
        if self._own is None:
            folders = (
                self._run_folder / shard_folder(self._key, self._term, writer) for writer in count(self._writers)
            )
            self._own = next(folder for folder in folders if durable.claim_folder(folder))
            self._folders.insert(0, self._own)
        return self._own


def find_sealed(run_folder: Path, key: WorkKey) -> list[tuple[int, str]]:
    """Returns term and folder (relative to the run folder) of each sealed copy of a shard, the latest term first."""
    written = _written_folders(run_folder, key)
    return [(term, folder) for term, folder in written if (run_folder / folder / MANIFEST).exists()]


def adopt(run_folder: Path, key: WorkKey, plan: str = "") -> ShardReceipt | None:
    """Returns the receipt of a shard already sealed with this plan under any term; None if it must be produced.

    The samples are read and their digests recomputed, because no ledger row vouches for the manifest yet. A
    copy that fails the check or has another plan is logged and skipped.
    """
    for term, folder in find_sealed(run_folder, key):
        if (receipt := _adopt_folder(run_folder=run_folder, key=key, term=term, folder=folder, plan=plan)) is not None:
            return receipt
    return None


def verify_shard(run_folder: Path, folder: str, manifest_sha256: str | None = None) -> Manifest:
    """Checks a sealed shard byte by byte. Raises `DataError` naming the file.

    manifest_sha256: the digest in the ledger.
    """
    manifest = load_manifest(run_folder / folder, SHARD_KIND, manifest_sha256)
    verify_files(run_folder / folder, manifest.files)
    return manifest


class RecordedShard(Protocol):
    """A shard as listed in the ledger."""

    @property
    def folder(self) -> str:
        """The folder, relative to the run folder."""
        ...

    @property
    def manifest_sha256(self) -> str:
        """The expected sha256 of its manifest."""
        ...


Recorded = TypeVar("Recorded", bound=RecordedShard)


def damaged_shards(run_folder: Path, rows: Iterable[Recorded]) -> list[Recorded]:
    """Returns the recorded shards whose files are missing or changed, and logs the error of each."""
    damaged = []
    for row in rows:
        try:
            verify_shard(run_folder, row.folder, row.manifest_sha256)
        except DataError as error:
            _log.error("%s must be regenerated: %s", row.folder, error)
            damaged.append(row)
    return damaged


def read_group_facts(run_folder: Path, row: RecordedShard) -> GroupFacts:
    """Returns the facts about groups in a recorded shard's manifest. Raises `DataError` if the manifest has changed."""
    fields = load_manifest(run_folder / row.folder, SHARD_KIND, row.manifest_sha256).fields
    if "groups" not in fields:
        raise DataError(
            f"{run_folder / row.folder / MANIFEST}: lacks its groups' facts; it was written by an older version"
        )
    return _groups(fields)


def read_slice_facts(run_folder: Path, row: RecordedShard) -> SliceFacts | None:
    """Returns what a round has made of a recorded shard's groups; None if they were drawn whole. Raises as `read_group_facts`."""
    return _slices(load_manifest(run_folder / row.folder, SHARD_KIND, row.manifest_sha256).fields)


def read_learnt_facts(run_folder: Path, row: RecordedShard) -> dict[int, LearntFacts]:
    """Returns the facts about the complete groups of a shard of a run with slices, by ordinal. Raises as `read_group_facts`."""
    fields = load_manifest(run_folder / row.folder, SHARD_KIND, row.manifest_sha256).fields
    parts = zip(fields["prompt_ordinals"], fields["sums_by_group"], fields["tokens_by_version"], strict=True)
    return {ordinal: LearntFacts(sums, dict(tokens)) for ordinal, sums, tokens in parts}


def read_shard_work(run_folder: Path, row: RecordedShard) -> ShardWork:
    """Returns the work of a recorded shard's samples; empty without judges. Raises as `read_group_facts`."""
    work = load_manifest(run_folder / row.folder, SHARD_KIND, row.manifest_sha256).fields.get("work", {})
    columns = {name: tuple(values) for name, values in work.items()}
    if "judged" in columns:
        columns["judged"] = tuple(tuple(tokens) for tokens in columns["judged"])
    return ShardWork(**columns)


def sweep(run_folder: Path, branch: int, iteration: int, keep_folders: Collection[str]) -> list[str]:
    """Removes an iteration's shard folders that are not to be kept, and leftover chunks in the folders that are.

    Returns the removed folders. Only for a driver that holds the lease and has every shard of the iteration.

    keep_folders: the folders listed in the ledger, relative to the run folder.
    """
    relative = iteration_folder(branch, iteration)
    removed = []
    for path in sorted((run_folder / relative).iterdir()) if (run_folder / relative).exists() else []:
        name = str(relative / path.name)
        if name in keep_folders:
            _remove_unnamed(path)
        elif _FOLDER.fullmatch(path.name) or _TRASH.fullmatch(path.name):
            durable.remove_folder(path)
            removed.append(name)
    return removed


def _written_folders(run_folder: Path, key: WorkKey) -> list[tuple[int, str]]:
    """Returns term and folder (relative to the run folder) of all writers of this shard so far, latest first."""
    parent = iteration_folder(key.branch, key.iteration)
    pattern = shard_folder(key, 0).name.removesuffix("0000") + "*"
    found = [(match, path) for path in (run_folder / parent).glob(pattern) if (match := _FOLDER.fullmatch(path.name))]
    found.sort(key=lambda item: (int(item[0][1]), int(item[0][2] or 0)), reverse=True)
    return [(int(match[1]), str(parent / path.name)) for match, path in found]


def _chunk_path(folder: Path, batch: int, kind: str) -> Path:
    return folder / f"batch-{batch:04d}.{kind}.arrow"


def _belongs(chunk: Chunk, responses_sha256: str) -> bool:
    return chunk.labels.get("responses") == responses_sha256


def _parquet_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=_REPEATED)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _facts(key: WorkKey, term: int, plan: str, table: pa.Table, carried: pa.Table | None = None) -> dict[str, Any]:
    """Returns a manifest's facts about its samples, without sums; a function of key, term, plan and canonical tables.

    carried: the responses that go on; None if none can.
    """
    digests = group_digests(table)
    going = {} if carried is None else {"carried_digests": _in_hex(carried_digests(carried)), **_learnt_facts(table)}
    return {
        **going,
        "key": asdict(key),
        "term": term,
        "plan": plan,
        "samples": table.num_rows,
        "response_tokens": len(table.column("response_tokens").combine_chunks().flatten()),
        "prompt_ordinals": np.unique(fixed_column(table, "prompt_ordinal")).tolist(),
        "group_digests": _in_hex(digests),
        "weight_versions": np.unique(fixed_column(table, "weight_version")).tolist(),
        "groups": {name: list(values) for name, values in asdict(group_facts(table)).items() if values},
    }


def _in_hex(digests: bytes) -> list[str]:
    return [digests[start : start + 32].hex() for start in range(0, len(digests), 32)]


def _learnt_facts(table: pa.Table) -> dict[str, Any]:
    """Returns what the iteration that learns from a group says of it: sums, and tokens by version, of each group."""
    bounds = group_offsets(fixed_column(table, "prompt_ordinal"))
    groups = [table.slice(start, stop - start) for start, stop in itertools.pairwise(bounds.tolist())]
    return {
        "sums_by_group": [sums_of(group) for group in groups],
        "tokens_by_version": [_by_version(g) for g in groups],
    }


def _by_version(group: pa.Table) -> list[list[int]]:
    """Returns the versions under which a group's tokens were drawn, each with its number of tokens, ascending."""
    versions, _ = ragged_column(group, STRETCH_VERSIONS)
    tokens, _ = ragged_column(group, STRETCH_TOKENS)
    drawn, _ = ragged_column(group, "loss_mask")
    found, counts = np.unique(np.repeat(versions, tokens)[drawn], return_counts=True)
    return [list(pair) for pair in zip(found.tolist(), counts.tolist(), strict=True)]


def _slice_facts(going: GoingGroups, table: pa.Table) -> dict[str, Any]:
    """Returns what a slice has made of each group: when it completed, how many responses have a score, and their lengths."""
    ordinals, counts = np.unique(fixed_column(table, "prompt_ordinal")[is_scored(table)], return_counts=True)
    scored = dict(zip(ordinals.tolist(), counts.tolist(), strict=True))
    return {
        "completed": [group.completed for group in going.groups.values()],
        "scored": [scored.get(ordinal, 0) for ordinal in going.groups],
        "lengths": [list(group.lengths) for group in going.groups.values()],
    }


def _slices(facts: Mapping[str, Any]) -> SliceFacts | None:
    found = facts.get("slices")
    if found is None:
        return None
    lengths = tuple(tuple(each) for each in found.get("lengths", ()))
    return SliceFacts(tuple(found["completed"]), tuple(found["scored"]), lengths)


def _groups(facts: Mapping[str, Any]) -> GroupFacts:
    return GroupFacts(**{name: tuple(values) for name, values in facts["groups"].items()})


def _receipt(
    key: WorkKey,
    term: int,
    folder: str,
    manifest_sha256: str,
    facts: Mapping[str, Any],
    sums: Mapping[str, float],
    timing: Mapping[str, float],
    adopted: bool = False,
) -> ShardReceipt:
    return ShardReceipt(
        key=key,
        term=term,
        folder=folder,
        manifest_sha256=manifest_sha256,
        prompts=len(facts["group_digests"]) + len(facts.get("carried_digests", ())),
        samples=facts["samples"],
        tokens=facts["response_tokens"],
        group_digests=bytes.fromhex("".join([*facts["group_digests"], *facts.get("carried_digests", ())])),
        sums=dict(sums),
        timing=dict(timing),
        adopted=adopted,
        groups=_groups(facts),
        slices=_slices(facts),
    )


def _adopt_folder(run_folder: Path, key: WorkKey, term: int, folder: str, plan: str) -> ShardReceipt | None:
    try:
        manifest = load_manifest(run_folder / folder, SHARD_KIND)
        verify_files(run_folder / folder, manifest.files)
        table = canonical_table(load_table(run_folder, [ShardRef(folder, manifest.sha256)]))
        carried = read_carried(run_folder / folder, manifest) if CARRIED_FILE in manifest.files else None
        facts = _facts(key=key, term=term, plan=plan, table=table, carried=carried)
        differing = [name for name, value in facts.items() if manifest.fields.get(name) != value]
        if differing:
            raise DataError(f"{run_folder / folder / MANIFEST}: differs from its task and samples in {differing}")
    except DataError as error:
        _log.warning("%s: a sealed shard cannot be used: %s", key, error)
        return None
    # The process that sealed it may have died before its name was durable.
    durable.sync_folder(run_folder / folder)
    return _receipt(
        key=key,
        term=term,
        folder=folder,
        manifest_sha256=manifest.sha256,
        facts={**facts, "slices": manifest.fields.get("slices")},
        sums=sums_of(table),
        timing={},
        adopted=True,
    )


def _remove_unnamed(folder: Path) -> None:
    """Deletes files that a sealed shard's manifest does not name: chunks, and files left unfinished by a kill."""
    sealed = (folder / MANIFEST).exists()
    for path in folder.iterdir():
        if sealed and path.name not in {MANIFEST, SAMPLES_FILE, JUDGEMENTS_FILE, CARRIED_FILE}:
            path.unlink(missing_ok=True)
