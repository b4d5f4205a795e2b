"""Classifies an object store's errors: a wrong address or credentials, or a failure that may be temporary.

Consumes the exceptions of s3fs, botocore and the network layers below them. Produces YATT's own, whose text names
the address and the remedy. No text contains a credential, because the store's own messages contain none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from yatt_core import durable
from yatt_core.errors import IS_AWAY, AwayError, ConfigurationError, StorageFullError, YattError

DENIED = frozenset(
    {
        "403", "AccessDenied", "AccountProblem", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken",
        "Forbidden", "InvalidAccessKeyId", "InvalidSecurity", "InvalidToken", "NotSignedUp", "SignatureDoesNotMatch",
    }
)  # fmt: skip
MISPLACED = frozenset(
    {"301", "IllegalLocationConstraintException", "InvalidBucketName", "NoSuchBucket", "PermanentRedirect"}
)
FULL = frozenset({"507", "QuotaExceeded", "XMinioStorageFull"})
CREDENTIALS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the machine's role"


@contextmanager
def refusals(address: str, work: str) -> Iterator[None]:
    """Turns the store's errors within the block into YATT's own.

    Raises `ConfigurationError` for a wrong bucket, endpoint, credentials or permissions; `StorageFullError` for an
    exhausted quota or a full disk of this host; `AwayError` for everything else: connections, timeouts,
    throttling and 5xx responses, all of which are raised only after retries.

    work: what is being attempted, for the text.
    """
    from aiohttp import ClientError as ConnectionFailed
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except YattError:
        raise
    except (OSError, ValueError, BotoCoreError, ClientError, ConnectionFailed) as error:
        raise failure_of(address, work, error) from error


def failure_of(address: str, work: str, error: BaseException) -> YattError:
    """Returns YATT's error for an error of the store."""
    from botocore.exceptions import (
        ConfigNotFound,
        InvalidRegionError,
        NoCredentialsError,
        NoRegionError,
        PartialCredentialsError,
        ProfileNotFound,
    )

    where = f"storage.url {address}: {work}"
    code = code_of(error)
    if code in DENIED:
        return ConfigurationError(
            f"{where}: the store rejects these credentials ({code}: {error}); set others in the environment "
            f"({CREDENTIALS}), or allow these to list, read, write and delete there"
        )
    if code in MISPLACED:
        return ConfigurationError(
            f"{where}: the bucket does not exist there ({code}: {error}); create it, or correct storage.url, "
            "AWS_ENDPOINT_URL or AWS_REGION"
        )
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigurationError(f"{where}: the environment contains no credentials; set {CREDENTIALS}")
    if isinstance(error, ProfileNotFound | ConfigNotFound | InvalidRegionError | NoRegionError | ValueError):
        return ConfigurationError(
            f"{where}: invalid settings in the environment: {error}; correct AWS_ENDPOINT_URL, AWS_REGION or AWS_PROFILE"
        )
    if code in FULL:
        return StorageFullError(
            f"{where}: the store's quota is exhausted ({code}: {error}); free some space, then resume the run"
        )
    if isinstance(error, OSError) and error.errno in durable.FULL:
        return StorageFullError(f"{where}: this host's disk: {error.strerror}; free some space, then resume the run")
    said = f"{code}: {error}" if code else f"{type(error).__name__}: {error}"
    return AwayError(f"{store_name(address)}{IS_AWAY}{work}: {said}")


def store_name(address: str) -> str:
    """Returns the name of a store in an `AwayError`."""
    return f"the object store {address}"


def code_of(error: BaseException) -> str:
    """Returns the store's error code, which s3fs wraps in an error of its own; empty if there was no response."""
    from botocore.exceptions import ClientError

    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, ClientError):
            return str(behind.response.get("Error", {}).get("Code", ""))
        behind = behind.__cause__ or behind.__context__
    return ""
