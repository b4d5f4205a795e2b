"""Where a run's checkpoints, experience and inputs are kept besides its folder."""

from __future__ import annotations

import re

from pydantic import field_validator

from yatt_core.spec.base import SpecModel

_SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*")
_RIGHT = "right would be s3://BUCKET/PREFIX, such as s3://training/yatt"


class StorageSpec(SpecModel):
    """The durable tier behind the run's folder."""

    url: str | None = None
    """`s3://BUCKET/PREFIX`: checkpoints, sealed shards and inputs are kept there too, and count as durable only then; endpoint
    and credentials come from the environment alone. `null`: the run's folder is all there is."""

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        if "@" in url or "?" in url:
            # Not repeated: what stands there may be a secret.
            raise ValueError(
                f"an address holds neither credentials nor options, which come from the environment; {_RIGHT}"
            )
        if not url.startswith(_SCHEME):
            raise ValueError(f"{url!r} is no address of an object store; {_RIGHT}")
        bucket, _, prefix = url.removeprefix(_SCHEME).partition("/")
        if not _BUCKET.fullmatch(bucket) or ".." in bucket:
            raise ValueError(
                f"{bucket!r} is no name of a bucket: 3 to 63 lower case letters, digits, dots and hyphens; {_RIGHT}"
            )
        if prefix and (not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/"))):
            raise ValueError(
                f"{prefix!r} is no prefix: words of letters, digits and . _ = - with one slash between two, and none at the "
                f"end; {_RIGHT}"
            )
        return url
