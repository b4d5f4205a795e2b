"""Where a run's checkpoints, experience and inputs are stored in addition to its folder."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import field_validator

from yatt_core.naming import Names
from yatt_core.spec.base import SpecModel

_SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*")
_RIGHT = "expected s3://BUCKET/PREFIX, such as s3://training/yatt"


class StorageSpec(SpecModel):
    """The durable storage tier behind the run's folder."""

    url: Annotated[str | None, Names("url")] = None
    """`s3://BUCKET/PREFIX`: checkpoints, sealed shards and inputs are also stored there, and count as durable
    only once they are; the endpoint and credentials are read from the environment. `null`: only the run's folder is
    used."""

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        if "@" in url or "?" in url:
            # The URL is not repeated in the message: it may contain a secret.
            raise ValueError(
                f"the URL must not contain credentials or options, which are read from the environment; {_RIGHT}"
            )
        if not url.startswith(_SCHEME):
            raise ValueError(f"{url!r} is not the URL of an object store; {_RIGHT}")
        bucket, _, prefix = url.removeprefix(_SCHEME).partition("/")
        if not _BUCKET.fullmatch(bucket) or ".." in bucket:
            raise ValueError(
                f"{bucket!r} is not a bucket name (3 to 63 lower-case letters, digits, dots and hyphens); {_RIGHT}"
            )
        if prefix and (not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/"))):
            raise ValueError(
                f"{prefix!r} is not a prefix (words of letters, digits and . _ = - separated by single slashes, "
                f"without a slash at the end); {_RIGHT}"
            )
        return url
