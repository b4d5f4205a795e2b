"""Asks the Hub, or a mirror of it, through `huggingface_hub`: commits, lists of files, files, and the tensors in them.

Consumes names and a token. Produces facts and files; what is not to be had is a `ConfigurationError` that says why and whose
token was sent, and what may be had later an `InfrastructureError`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from yatt_core import durable
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.hub.files import HubFile
from yatt_core.logs import keep_secret
from yatt_core.models.offline import asking_on_purpose
from yatt_core.secret_references import BlockReader, SecretReference, resolve

Kind = Literal["model", "dataset"]
SECONDS = 30.0
"""Time limit of a question."""
_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@dataclass(frozen=True, slots=True)
class Token:
    """What is sent to show who asks.

    value: None to send nothing.
    origin: where it comes from, in words.
    """

    value: str | None = field(repr=False)
    origin: str

    @property
    def sent(self) -> str:
        """Says which token was sent, for messages."""
        return "no token was sent" if self.value is None else f"the token of {self.origin} was sent"


def token_of(reference: SecretReference | None, key: str, read_block: BlockReader | None = None) -> Token:
    """Returns the token that a spec names, or else the one that `huggingface_hub` finds, if any.

    Raises `ConfigurationError` for a reference to nothing.
    """
    from huggingface_hub import constants, get_token

    if reference is not None:
        return Token(resolve(reference, f"{key}.token", read_block), str(reference))
    value = get_token()
    if not value:
        return Token(None, "")
    keep_secret(value)
    variable = next((name for name in _VARIABLES if os.environ.get(name, "").strip() == value), None)
    origin = f"the file {constants.HF_TOKEN_PATH}" if variable is None else f"the environment variable {variable}"
    return Token(value, origin)


@dataclass(frozen=True, slots=True)
class HubClient:
    """A repository and who asks for it.

    endpoint: address of the Hub; None: `HF_ENDPOINT`, or the public Hub.
    """

    kind: Kind
    repo: str
    token: Token
    endpoint: str | None = None

    def commit_of(self, revision: str) -> str:
        """Returns the commit of a branch, a tag or a commit."""
        with self._asking(f"revision {revision!r}"):
            found = self._api.repo_info(
                self.repo, repo_type=self.kind, revision=revision, timeout=SECONDS, token=self._sent
            )
        if not found.sha:
            raise ConfigurationError(f"{self.place}: the answer names no commit of revision {revision!r}")
        return str(found.sha)

    def files(self, commit: str) -> list[HubFile]:
        """Returns all files of a commit."""
        with self._asking(f"commit {commit}"):
            listed = list(
                self._api.list_repo_tree(
                    self.repo, recursive=True, revision=commit, repo_type=self.kind, token=self._sent
                )
            )
        return sorted(_file_of(each) for each in listed if hasattr(each, "blob_id"))

    def fetch(self, commit: str, name: str, folder: Path) -> Path:
        """Fetches a file into a folder, with the folders that its name has; returns its path."""
        from huggingface_hub import hf_hub_download

        with self._asking(name):
            path = hf_hub_download(
                self.repo,
                name,
                repo_type=self.kind,
                revision=commit,
                local_dir=folder,
                token=self._sent,
                endpoint=self.endpoint,
                etag_timeout=SECONDS,
            )
        return Path(path)

    def header(self, commit: str, name: str) -> bytes:
        """Returns the header of a file of tensors (names, types and shapes), without the tensors."""
        with self._asking(name):
            found = self._api.parse_safetensors_file_metadata(
                self.repo, name, repo_type=self.kind, revision=commit, token=self._sent, timeout=SECONDS
            )
        tensors: dict[str, Any] = {
            key: {"dtype": each.dtype, "shape": list(each.shape), "data_offsets": list(each.data_offsets)}
            for key, each in found.tensors.items()
        }
        if found.metadata:
            tensors["__metadata__"] = dict(found.metadata)
        return json.dumps(tensors, separators=(",", ":")).encode()

    @property
    def address(self) -> str:
        """The address of the Hub or mirror."""
        from huggingface_hub import constants

        return self.endpoint or str(constants.ENDPOINT)

    @property
    def place(self) -> str:
        """Names the repository in messages."""
        return f"{self.kind} {self.repo} on {self.address}"

    @property
    def _sent(self) -> str | bool:
        return self.token.value or False

    @property
    def _api(self) -> Any:
        from huggingface_hub import HfApi
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        return HfApi(endpoint=self.endpoint, token=self._sent)

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Turns the client's errors into ours; a gated repository first, since the client counts it as one not found."""
        from huggingface_hub import errors

        # The base of the client's errors is another library's in each of its versions.
        any_http_error: type[BaseException] = errors.HfHubHTTPError.__mro__[1]
        try:
            with asking_on_purpose():
                yield
        except errors.GatedRepoError:
            raise ConfigurationError(
                f"{self.place} is gated: ask for access on its page with the account of the token ({self.token.sent})"
            ) from None
        except errors.RevisionNotFoundError:
            raise ConfigurationError(
                f"{self.place} has no {what}; expected a branch, a tag or a commit of it"
            ) from None
        except errors.RemoteEntryNotFoundError:
            raise ConfigurationError(f"{self.place} has no file {what}") from None
        except errors.RepositoryNotFoundError as error:
            raise ConfigurationError(self._not_found(error)) from None
        except errors.HfHubHTTPError as error:
            raise self._refused(error, what) from None
        except (errors.LocalEntryNotFoundError, errors.FileMetadataError, errors.OfflineModeIsEnabled) as error:
            cause = error.__cause__ or error
            if isinstance(cause, errors.HfHubHTTPError):
                raise self._refused(cause, what) from None
            raise self._unreachable(cause, what) from None
        except any_http_error as error:
            raise self._unreachable(error, what) from None
        except OSError as error:
            raise durable.refusal(f"{self.place}: {what} cannot be fetched", error) from None
        except (ValueError, errors.SafetensorsParsingError, errors.NotASafetensorsRepoError) as error:
            raise ConfigurationError(f"{self.place}: {what}: {error}") from None
        except RuntimeError as error:  # of the library for large files, which has no class of its own
            raise self._unreachable(error, what) from None

    def _not_found(self, error: Any) -> str:
        """Says why a repository is not to be had; the Hub answers alike for what is not there and what is private."""
        if self.token.value is None:
            return (
                f"{self.place} does not exist, or is private ({self.token.sent}); expected ORGANISATION/NAME, or the path of a "
                "folder of this machine"
            )
        if getattr(error.response, "status_code", 0) == 401:
            return f"{self.place}: {self.token.sent} and is not accepted: it does not exist, is private, or the token has expired"
        return f"{self.place} does not exist, or is private and that token may not read it ({self.token.sent})"

    def _refused(self, error: Any, what: str) -> ConfigurationError | InfrastructureError:
        status = getattr(error.response, "status_code", 0)
        said = str(getattr(error, "server_message", None) or "").strip() or f"status {status}"
        if status == 401 and self.token.value is None:
            return ConfigurationError(f"{self.place}: asks for a token ({said:.200}), and none was sent")
        if status == 401:
            return ConfigurationError(
                f"{self.place}: {self.token.sent} and is refused ({said:.200}); replace it, or unset it: a public repository "
                "needs none, but an expired token is refused there too"
            )
        if status == 403:
            return ConfigurationError(f"{self.place}: access is denied ({said:.200}); {self.token.sent}")
        return InfrastructureError(f"{self.place}: {what}: the answer was {status} ({said:.200}); try again later")

    def _unreachable(self, error: BaseException, what: str) -> InfrastructureError:
        said = str(error).strip().partition("\n")[0]
        return InfrastructureError(f"{self.place}: {what} cannot be fetched: {type(error).__name__}: {said:.200}")


def _file_of(listed: Any) -> HubFile:
    path = PurePosixPath(listed.path)
    if path.is_absolute() or ".." in path.parts:
        raise ConfigurationError(f"the list of files names {listed.path!r:.120}, which is outside of its repository")
    digest = f"git:{listed.blob_id}" if listed.lfs is None else f"sha256:{listed.lfs.sha256}"
    size = listed.size if listed.lfs is None else listed.lfs.size
    return HubFile(path=listed.path, size=int(size), digest=digest)
