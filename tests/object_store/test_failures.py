"""How a store's refusals are classified: mistakes that end a run with exit code 2, and failures that are retried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.retries.standard import ExponentialBackoff
from s3fs import S3FileSystem

from ops.preflight.run import check_before_start
from tests.object_store.server import SECRET, S3Server
from tests.ops.seeding import toy_spec
from yatt_core.errors import AwayError, ConfigurationError, ExitCode, InfrastructureError, StorageFullError
from yatt_core.spec import availability
from yatt_core.spec.sections.storage import StorageSpec
from yatt_core.storage.objects import ATTEMPTS, ObjectStore
from yatt_core.storage.run_store import ObjectRunStore


@pytest.fixture
def fresh() -> Iterator[None]:
    """Clears cached clients before and after the test, so that new ones read the environment."""
    S3FileSystem.clear_instance_cache()
    yield
    S3FileSystem.clear_instance_cache()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the pauses between attempts."""
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.0)


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError")])
def test_a_store_that_throttles_or_answers_with_5xx_after_retries_is_away(
    server: S3Server, objects: ObjectStore, impatient: None, status: int, code: str
) -> None:
    server.refuse(status, code, ATTEMPTS - 1)
    objects.write("a", b"kept")
    assert objects.read("a") == b"kept", "brief refusals are hidden by retries"
    server.refuse(status, code, 4 * ATTEMPTS)
    with pytest.raises(InfrastructureError, match=code) as caught:
        objects.write("b", b"refused")
    assert isinstance(caught.value, AwayError) and caught.value.dependency == f"the object store {objects.url}"
    server.refusals.clear()
    assert objects.sizes("") == {"a": 4}, "a refused write leaves nothing"


def test_an_unreachable_store_is_away(
    objects: ObjectStore, fresh: None, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(InfrastructureError, match=r"the object store s3://.* is away: checking access: .*connect"):
        objects.check()


def test_a_store_that_was_away_answers_a_small_request_once_it_is_back(
    server: S3Server, objects: ObjectStore, impatient: None, tmp_path: Path
) -> None:
    store = ObjectRunStore(objects, tmp_path / "toy-1")
    server.refuse(503, "SlowDown", 4 * ATTEMPTS)
    with pytest.raises(AwayError) as away:
        store.claim("mine")
    assert store.answers(away.value.dependency) is False
    assert store.answers("judge 'kind' at https://judge.example/v1") is None, "what it cannot know it does not say"
    server.refusals.clear()
    server.requests.clear()
    assert store.answers(away.value.dependency) is True, "although it holds nothing of the run yet"
    assert [request.split()[0] for request in server.requests] in (["GET"], ["HEAD"]), "nothing is written to see it"


@pytest.mark.parametrize(
    ("variable", "value", "remedy"),
    [
        ("AWS_ACCESS_KEY_ID", "unknown", "InvalidAccessKeyId.*AWS_SECRET_ACCESS_KEY"),
        ("AWS_ACCESS_KEY_ID", "", "set .*AWS_SECRET_ACCESS_KEY"),
        ("AWS_PROFILE", "nobody", "AWS_PROFILE"),
        ("AWS_ENDPOINT_URL", "no address", "AWS_ENDPOINT_URL"),
    ],
)
def test_mistakes_in_the_environment_are_configuration(
    objects: ObjectStore, fresh: None, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, remedy: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=remedy) as caught:
        objects.check()
    assert caught.value.exit_code == ExitCode.CONFIGURATION
    assert SECRET not in str(caught.value)


def test_missing_credentials_are_named(objects: ObjectStore, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigurationError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        objects.check()


@pytest.mark.parametrize("work", ["check", "read", "write", "sizes"])
def test_a_missing_bucket_is_configuration_for_any_operation(server: S3Server, work: str) -> None:
    store = ObjectStore("s3://no-such-bucket/prefix")
    asked = {
        "check": store.check,
        "read": lambda: store.read("a"),
        "write": lambda: store.write("a", b""),
        "sizes": lambda: store.sizes("a"),
    }
    with pytest.raises(ConfigurationError, match=r"NoSuchBucket|404"):
        asked[work]()


def test_a_run_is_refused_before_it_is_created(server: S3Server, tmp_path: Path) -> None:
    spec = toy_spec().model_copy(update={"storage": StorageSpec(url="s3://no-such-bucket/prefix")})
    with pytest.raises(ConfigurationError, match=r"NoSuchBucket|404") as caught:
        check_before_start(tmp_path / "home", spec)
    assert caught.value.exit_code == ExitCode.CONFIGURATION
    assert not (tmp_path / "home").exists()


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(availability, "has_distribution", lambda name: name != "s3fs")
    spec = toy_spec().model_copy(update={"storage": StorageSpec(url="s3://bucket/prefix")})
    with pytest.raises(ConfigurationError, match=r"storage\.url: s3fs is not installed; install yatt\[s3\]"):
        check_before_start(tmp_path, spec)


def test_a_spent_quota_is_a_full_storage(server: S3Server, objects: ObjectStore) -> None:
    server.refuse(400, "QuotaExceeded")
    with pytest.raises(StorageFullError, match="resume the run"):
        objects.write("a", b"x")


def test_a_full_disk_of_the_host_that_downloads_is_a_full_storage(objects: ObjectStore) -> None:
    objects.write("a", b"x" * 100_000)
    with pytest.raises(StorageFullError, match=r"this host's disk: .*free some space"):
        objects.download({"a": Path("/dev/full")})


def test_read_access_alone_is_not_enough(server: S3Server, objects: ObjectStore) -> None:
    objects.check()
    server.refuse(403, "AccessDenied")
    with pytest.raises(ConfigurationError, match="list, read, write and delete"):
        objects.write("a", b"x")


def test_a_listing_of_several_pages_is_complete(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        objects.write(f"x/{number}", b"1" * number)
    call = objects._system.call_s3
    monkeypatch.setattr(objects._system, "call_s3", lambda *a, **k: call(*a, **{"MaxKeys": 2, **k}))
    assert objects.sizes("x/") == {f"x/{number}": number for number in range(5)}


def test_nothing_is_created_twice(objects: ObjectStore) -> None:
    objects.create("a", b"first")
    objects.create("a", b"second")
    assert objects.read("a") == b"first"
