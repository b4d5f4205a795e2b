"""What an object store's refusal is to us: a mistake of the address or the credentials, or a failure that may pass.

Consumes the exceptions of s3fs, botocore and the network below them; produces ours, with the address and the remedy in the text.
No text holds a credential: the store's own messages name none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from yatt_core.errors import ConfigurationError, InfrastructureError, StorageFullError, YattError

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
    """Turns what the store refuses within into one of our errors. work: what was to be done, for the text.

    `ConfigurationError`: bucket, endpoint, credentials or what they may do. `StorageFullError`: a quota. All else is an
    `InfrastructureError`: connections, time limits, throttling and answers of 5xx, each of them tried again before.
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
    """The error that stands for a refusal."""
    from botocore.exceptions import (
        ConfigNotFound,
        InvalidRegionError,
        NoCredentialsError,
        NoRegionError,
        PartialCredentialsError,
        ProfileNotFound,
    )

    where, code = f"storage.url {address}: {work}", code_of(error)
    if code in DENIED:
        return ConfigurationError(
            f"{where}: the store refuses these credentials ({code}: {error}); give it others by the environment "
            f"({CREDENTIALS}), or allow them to list, read, write and delete there"
        )
    if code in MISPLACED:
        return ConfigurationError(
            f"{where}: there is no such bucket there ({code}: {error}); make it, or correct storage.url, AWS_ENDPOINT_URL or "
            "AWS_REGION"
        )
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return ConfigurationError(f"{where}: the environment holds no credentials; set {CREDENTIALS}")
    if isinstance(error, ProfileNotFound | ConfigNotFound | InvalidRegionError | NoRegionError | ValueError):
        return ConfigurationError(
            f"{where}: the environment's settings cannot be used: {error}; correct AWS_ENDPOINT_URL, AWS_REGION or AWS_PROFILE"
        )
    if code in FULL:
        return StorageFullError(
            f"{where}: the store's quota is spent ({code}: {error}); make room, then resume the run"
        )
    said = f"{code}: {error}" if code else f"{type(error).__name__}: {error}"
    return InfrastructureError(f"{where}: {said}")


def code_of(error: BaseException) -> str:
    """The store's code of an answer, which s3fs keeps behind an error of its own; empty where no answer came."""
    from botocore.exceptions import ClientError

    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, ClientError):
            return str(behind.response.get("Error", {}).get("Code", ""))
        behind = behind.__cause__ or behind.__context__
    return ""
