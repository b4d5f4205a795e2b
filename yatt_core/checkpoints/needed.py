"""The parts of a checkpoint that the ranks of one disk need, fetched from the durable tier and verified block by block.

Consumes a published checkpoint with an index for each rank that wrote it, what the ranks of a disk need, and files that
are on the disk already. Produces a hidden folder beside the checkpoint's: manifest, small files and indexes, whole;
of the files of tensor parts, headers and the needed blocks, each compared with its digest. The rest of such a file is a
hole that nobody can read. The next sweep deletes the folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from yatt_core import durable
from yatt_core.checkpoints.contents import open_tensors
from yatt_core.checkpoints.shares import has_parts
from yatt_core.checkpoints.verify import CHECKPOINT_KIND
from yatt_core.errors import DataError
from yatt_core.manifests import MANIFEST, FileEntry, Manifest, load_manifest, verify_files
from yatt_core.protocols.engines import NeededTensor
from yatt_core.storage.fetching import fetching
from yatt_core.storage.run_store import RunStore
from yatt_core.wire.part_files import PartFiles, hold, stored_parts
from yatt_core.wire.part_index import SUFFIX, PartIndex, Span, blocks_of

Spans = dict[str, tuple[Span, ...]]
"""Ascending spans of whole blocks, by file."""
Block = tuple[Span, bytes]
"""A block with its sha256."""
RUN_BYTES = 16 << 20
"""Maximum size of a request, unless a single block is larger."""
log = logging.getLogger(__name__)


def needed_folder(run_folder: Path, folder: str) -> Path:
    """Returns where the needed parts of a checkpoint are."""
    target = run_folder / folder
    return target.with_name(f".{target.name}.needed")


def bring_index(store: RunStore, run_folder: Path, folder: str, manifest_sha256: str) -> Path | None:
    """Fetches what says where a checkpoint's tensors are; returns the folder of the needed parts.

    Processes of a node that call it together fetch once. Returns None for a checkpoint without indexes, and for one
    that neither this disk nor the durable tier has with this manifest. Raises `DataError` if a file is damaged.
    """
    place = needed_folder(run_folder, folder)
    local = run_folder / folder
    durable.make_folder(place.parent)
    with fetching(run_folder), durable.refusals(f"{place}: cannot be fetched"):
        if not _has_manifest(place, manifest_sha256):
            shutil.rmtree(place, ignore_errors=True)
            data = _manifest(store, local, folder, manifest_sha256)
            if data is None:
                return None
            place.mkdir()
            (place / MANIFEST).write_bytes(data)
        manifest = load_manifest(place, CHECKPOINT_KIND, manifest_sha256)
        if not any(name.endswith(SUFFIX) for name in manifest.files):
            shutil.rmtree(place, ignore_errors=True)
            return None
        _bring_small(store=store, place=place, local=local, folder=folder, manifest=manifest)
        _make_holes(place, manifest)
    return place


def needed_spans(place: Path, needed: Iterable[NeededTensor]) -> Spans:
    """Returns the blocks that hold what a rank needs. Raises `DataError` if the checkpoint lacks a tensor."""
    opened: dict[str, PartFiles] = {}
    found: dict[str, list[Span]] = {}
    for each in needed:
        if each.subfolder not in opened:
            opened[each.subfolder] = open_tensors(place, each.subfolder)
        for part, common in opened[each.subfolder].overlaps(each.name, each.box):
            spans = found.setdefault(part.path.relative_to(place).as_posix(), [])
            blocks = list(blocks_of(part.start, part.nbytes))
            step = blocks[0][1] - blocks[0][0]
            for first, last in part.spans(common):
                span = (blocks[(first - part.start) // step][0], blocks[(last - 1 - part.start) // step][1])
                if spans and spans[-1][0] <= span[0] <= spans[-1][1]:
                    spans[-1] = (spans[-1][0], max(span[1], spans[-1][1]))
                else:
                    spans.append(span)
    return {name: merged(spans) for name, spans in found.items()}


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Returns the union of spans, ascending, of which no two touch."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def divided(needed: Sequence[Mapping[str, tuple[Span, ...]]]) -> list[Spans]:
    """Divides what the ranks of a disk need among them, file by file, so that each fetches similarly many bytes."""
    together: dict[str, list[Span]] = {}
    for each in needed:
        for name, spans in each.items():
            together.setdefault(name, []).extend(spans)
    union = {name: merged(spans) for name, spans in together.items()}
    size = {name: sum(last - first for first, last in spans) for name, spans in union.items()}
    shares = [Spans() for _ in needed]
    sizes = [0] * len(needed)
    for name in sorted(union, key=lambda name: (-size[name], name)):
        least = sizes.index(min(sizes))
        shares[least][name] = union[name]
        sizes[least] += size[name]
    return shares


def bring_needed(store: RunStore, run_folder: Path, folder: str, needed: Mapping[str, tuple[Span, ...]]) -> int:
    """Makes blocks of files readable, after `bring_index`; returns the bytes that were fetched.

    Blocks that this disk has are used if they match their digests. Only one process of a disk may bring a file.

    Raises `DataError` if the durable tier's bytes do not match either.
    """
    place = needed_folder(run_folder, folder)
    fetched = 0
    indexes = {
        name: index
        for path in sorted(place.glob(f"*{SUFFIX}"))
        for index in [PartIndex(path)]
        for name in index.headers
    }
    with durable.refusals(f"{place}: cannot be fetched"):
        for name, spans in needed.items():
            blocks = list(_blocks(place / name, indexes[name], name, spans))
            hold(place / name, ())
            fetched += _bring_blocks(
                store=store,
                local=run_folder / folder / name,
                place=place,
                folder=folder,
                name=name,
                blocks=blocks,
                index=indexes[name],
            )
            hold(place / name, spans)
    return fetched


def _manifest(store: RunStore, local: Path, folder: str, sha256: str) -> bytes | None:
    if _has_manifest(local, sha256):
        return (local / MANIFEST).read_bytes()
    data = store.read(folder, MANIFEST)
    return data if data is not None and hashlib.sha256(data).hexdigest() == sha256 else None


def _has_manifest(folder: Path, sha256: str) -> bool:
    path = folder / MANIFEST
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _bring_small(store: RunStore, place: Path, local: Path, folder: str, manifest: Manifest) -> None:
    """Fetches the files without tensor parts that this disk does not have intact."""
    small = {name: entry for name, entry in manifest.files.items() if not has_parts(name)}
    lacking = []
    for name, entry in small.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        if _is_intact(place, name, entry):
            continue
        if _is_intact(local, name, entry):
            shutil.copyfile(local / name, place / name)
        else:
            lacking.append(name)
    store.receive(folder, {name: place / name for name in lacking})
    verify_files(place, small)


def _is_intact(folder: Path, name: str, entry: FileEntry) -> bool:
    try:
        verify_files(folder, {name: entry})
    except DataError:
        return False
    return True


def _make_holes(place: Path, manifest: Manifest) -> None:
    """Creates the files of tensor parts with their headers. Raises `DataError` if an index does not match the manifest."""
    expected = {name for name in manifest.files if has_parts(name)}
    found = set[str]()
    for path in sorted(place.glob(f"*{SUFFIX}")):
        for name, header in PartIndex(path).headers.items():
            if name not in expected or manifest.files[name].size < 8 + len(header):
                raise DataError(f"{path}: describes {name}, of which the manifest says something else")
            found.add(name)
            if not (place / name).exists():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                hold(place / name, ())
                _make_hole(place / name, header, manifest.files[name].size)
    if lacking := sorted(expected - found):
        raise DataError(f"{place}: no index describes {lacking[0]}")


def _make_hole(path: Path, header: bytes, size: int) -> None:
    temporary = durable.temporary_name(path)
    with temporary.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(size)
    temporary.replace(path)


def _blocks(path: Path, index: PartIndex, name: str, spans: Sequence[Span]) -> Iterator[Block]:
    """Yields the blocks of a file that lie within spans."""
    parts = sorted(stored_parts(path), key=lambda part: part.start)
    every = [block for part in parts for block in blocks_of(part.start, part.nbytes)]
    digests = index.digests(name)
    if len(digests) != len(every):
        raise DataError(f"{path}: has {len(every)} blocks, its index {len(digests)}")
    place = 0
    for (first, last), digest in zip(every, digests, strict=True):
        while place < len(spans) and spans[place][1] <= first:
            place += 1
        if place < len(spans) and spans[place][0] <= first and last <= spans[place][1]:
            yield (first, last), digest


def _bring_blocks(
    store: RunStore, local: Path, place: Path, folder: str, name: str, blocks: Sequence[Block], index: PartIndex
) -> int:
    """Makes the file at `place` contain the blocks; returns the bytes that were fetched."""
    path = place / name
    header = index.headers[name]
    lacking = _not_intact(path, blocks, header)
    if not lacking:
        return 0
    if local.is_file() and local.stat().st_size == path.stat().st_size:
        damaged = _not_intact(local, blocks, header)
        if not damaged:
            temporary = durable.temporary_name(path)
            os.link(local, temporary)
            temporary.replace(path)
            return 0
        log.warning("%s: %d of %d blocks are damaged or missing: fetching them", local, len(damaged), len(blocks))
    if path.stat().st_nlink > 1 or not _has_header(path, header):  # the other name of the file is not to change
        _make_hole(path, header, path.stat().st_size)
        lacking = list(blocks)
    runs = list(_runs(lacking))
    pieces = store.pieces(folder, name, [(run[0][0][0], run[-1][0][1]) for run in runs])
    with path.open("r+b", buffering=0) as stream:
        for run, piece in zip(runs, pieces, strict=True):
            start = run[0][0][0]
            for (first, last), digest in run:
                data = memoryview(piece)[first - start : last - start]
                if hashlib.sha256(data).digest() != digest:
                    raise DataError(
                        f"{folder}/{name}: bytes {first} to {last} on the object store are not those of its index"
                    )
            _write_all(stream.fileno(), piece, start)
    return sum(last - first for (first, last), _ in lacking)


def _not_intact(path: Path, blocks: Sequence[Block], header: bytes) -> list[Block]:
    """Returns the blocks that a file does not have; all of them if its header is another one."""
    if not _has_header(path, header):
        return list(blocks)
    with path.open("rb", buffering=0) as stream:
        return [
            ((first, last), digest)
            for (first, last), digest in blocks
            if hashlib.sha256(os.pread(stream.fileno(), last - first, first)).digest() != digest
        ]


def _has_header(path: Path, header: bytes) -> bool:
    with path.open("rb") as stream:
        return stream.read(8 + len(header)) == len(header).to_bytes(8, "little") + header


def _runs(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Yields groups of adjacent blocks, each of at most `RUN_BYTES` or one block."""
    run: list[Block] = []
    for block in blocks:
        (first, last), _ = block
        if run and (run[-1][0][1] != first or last - run[0][0][0] > RUN_BYTES):
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def _write_all(descriptor: int, data: bytes, start: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, memoryview(data)[done:], start + done)
