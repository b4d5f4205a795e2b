"""Work that may fail on one rank alone: then it fails on all, so that none waits in the next operation for one that gave up.

Consumes a rank's work. Produces what it finds, or on every rank the same failure. A failure travels as its class and its
text, and never as an object: ranks do not run what others send.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from yatt_core import errors
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.errors import DataError, InfrastructureError, YattError

Found = TypeVar("Found")


def by_all(world: Collective, work: Callable[[], Found]) -> Found:
    """Returns what this rank's work finds. Every rank must call it; the work itself must not wait for other ranks.

    Raises the work's `YattError`, or a `DataError` for an error of Arrow. Ranks whose work has not failed raise the error of
    the first one whose work has: of the same class, or of the nearest that `yatt_core.errors` has. Any other exception is
    raised on its own rank, and is an `InfrastructureError` on the others.
    """
    said = _said(InfrastructureError(f"rank {world.rank} ended with an unexpected error, which its log has"))
    try:
        found = work()
        said = b""
    except YattError as error:
        said = _said(error)
        raise
    except pa.ArrowException as error:
        refused = DataError(f"Arrow: {error}")
        said = _said(refused)
        raise refused from error
    finally:
        # Also after an exception of which nothing is known here: the others must not wait for this rank.
        heard = [one for one in world.gathered(said) if one]
    if heard:
        raise _heard(heard[0])
    return found


def _said(error: YattError) -> bytes:
    known = vars(errors)
    kind = next(kind.__name__ for kind in type(error).__mro__ if known.get(kind.__name__) is kind)
    return json.dumps({"kind": kind, "text": str(error)}).encode()


def _heard(said: bytes | bytearray) -> YattError:
    told: dict[str, Any] = json.loads(said)
    kind: type[YattError] = vars(errors)[told["kind"]]
    return kind(told["text"])
