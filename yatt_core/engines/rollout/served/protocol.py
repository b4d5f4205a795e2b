"""What an actor and the process of its engine say to each other: frames of JSON and numbers, in a numbered version.

Both ends have libraries of their own, so that no object of a library travels and nothing is unpickled: a frame holds plain
values, arrays of numbers, YATT's errors, and the records that are listed here. docs/engine-protocol.md describes it for
those who write an engine. Consumes and produces frames on a connection.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core import errors
from yatt_core.engines.rollout.served.responses import Response, Step
from yatt_core.engines.rollout.served.shared_bucket import SharedBucket
from yatt_core.engines.rollout.served.span import Span
from yatt_core.errors import InfrastructureError, YattError
from yatt_core.protocols.generation import GenerateRequest
from yatt_core.wire.buckets import Place, WeightBucket
from yatt_core.wire.packed import ALIGNMENT
from yatt_core.wire.parts import Box, Rectangle
from yatt_core.wire.support import Support

VERSION = 4
"""Of the calls, the records and the frames; it changes with any of them."""
OPEN = "open"
FOLLOW = "follow"
"""The first call: to open an engine, or an engine's workers on a node without its scheduler."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first frame in each direction; its form is the same in all versions.

    protocol: its sender's `VERSION`.
    versions: of Python and of the sender's packages that matter, by name.
    """

    protocol: int
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Opening:
    """What an engine is opened with.

    model_path: folder of the model.
    settings: the keys of the engine's section in the spec, but for those that only YATT reads.
    longest: maximum number of tokens of a sequence, including its prompt.
    version: version of the weights in the folder; -1 if they only define the shapes.
    inputs_folder: folder of the images that requests name by address; None: prompts have no images.
    span: the engine's nodes; None if it has one.
    invariant: whether a response must have the same bits in every batch, if the engine can see to it.
    """

    model_path: str
    settings: Mapping[str, Any]
    longest: int
    version: int = -1
    inputs_folder: str | None = None
    span: Span | None = None
    invariant: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A call: the name of a method, and its arguments."""

    method: str
    arguments: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call has returned, or the error that it has raised."""

    value: Any = None
    error: YattError | None = None


RECORDS: Mapping[str, type[Any]] = {
    record.__name__: record
    for record in (
        Answer, Box, Call, GenerateRequest, Greeting, Opening, Place, Rectangle, Response, SharedBucket, Span, Step,
        Support, WeightBucket,
    )
}  # fmt: skip
ERRORS: Mapping[str, type[YattError]] = {
    name: found for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, YattError)
}
RECORD = "record"
ERROR = "error"
ARRAY = "array"
MAP = "map"
"""The key by which a JSON object in a frame tells what it stands for."""
HEAD = struct.Struct("<Q")
"""A frame's first bytes: the length of its JSON text."""

Array = npt.NDArray[Any]


def send(connection: Connection, value: Any) -> None:
    """Sends a value. Raises `TypeError` for one that the protocol does not know."""
    connection.send_bytes(frame_of(value))


def receive(connection: Connection) -> Any:
    """Returns the next value. Raises `InfrastructureError` for bytes that are no frame, `EOFError` at the end."""
    return value_of(connection.recv_bytes())


def frame_of(value: Any) -> bytes:
    """Returns a value as a frame: the length of a JSON text, the text, and the arrays' bytes, each at an aligned place.

    Sequences arrive as tuples, paths as texts. Raises `TypeError` for a value that the protocol does not know.
    """
    arrays = _Arrays()
    text = json.dumps(_plain(value, arrays)).encode()
    text += b" " * (-(HEAD.size + len(text)) % ALIGNMENT)  # so that the arrays behind it are aligned
    return b"".join([HEAD.pack(len(text)), text, *arrays.parts])


def value_of(frame: bytes) -> Any:
    """Returns the value of a frame; its arrays cannot be written to. Raises `InfrastructureError` for other bytes."""
    try:
        (length,) = HEAD.unpack_from(frame)
        end = HEAD.size + length
        return _value(json.loads(frame[HEAD.size : end]), memoryview(frame)[end:])
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InfrastructureError(
            f"an engine's process sent what is no frame of protocol {VERSION}: {error}"
        ) from error


class _Arrays:
    """The arrays of a frame in the making."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._end = 0

    def add(self, array: Array) -> int:
        """Adds an array; returns the place of its first byte behind the text."""
        gap = -self._end % ALIGNMENT
        place = self._end + gap
        data = array.tobytes()
        self.parts += [bytes(gap), data]
        self._end = place + len(data)
        return place


def _plain(value: Any, arrays: _Arrays) -> Any:
    """Returns a value as JSON values; its arrays are added to those of the frame."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.ndarray):
        return {ARRAY: arrays.add(value), "type": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, YattError):
        known = next(kind for kind in type(value).__mro__ if ERRORS.get(kind.__name__) is kind)
        return {ERROR: known.__name__, "text": str(value)}
    if is_dataclass(value) and RECORDS.get(type(value).__name__) is type(value):
        named = {field.name: _plain(getattr(value, field.name), arrays) for field in fields(value)}
        return {RECORD: type(value).__name__, "fields": named}
    if isinstance(value, Mapping):
        return {MAP: [[_plain(key, arrays), _plain(one, arrays)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return [_plain(one, arrays) for one in value]
    raise TypeError(f"protocol {VERSION} of engines knows no {type(value).__name__}")


def _value(plain: Any, data: memoryview) -> Any:
    """Returns the value for which JSON values stand. data: the bytes of all arrays."""
    if isinstance(plain, list):
        return tuple(_value(one, data) for one in plain)
    if not isinstance(plain, dict):
        return plain
    if ARRAY in plain:
        kind = np.dtype(plain["type"])
        if kind.hasobject:
            raise TypeError("an array of objects")
        shape = tuple(plain["shape"])
        if min(shape, default=0) < 0:
            raise ValueError(f"an array of shape {shape}")
        return np.frombuffer(data, kind, int(np.prod(shape, dtype=np.int64)), plain[ARRAY]).reshape(shape)
    if ERROR in plain:
        return ERRORS[plain[ERROR]](plain["text"])
    if RECORD in plain:
        return RECORDS[plain[RECORD]](**{name: _value(one, data) for name, one in plain["fields"].items()})
    return dict(_pairs(plain[MAP], data))


def _pairs(plain: Sequence[Sequence[Any]], data: memoryview) -> Iterator[tuple[Any, Any]]:
    for key, one in plain:
        yield _value(key, data), _value(one, data)
