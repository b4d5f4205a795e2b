"""References to secrets: where a value comes from, what is refused, and that neither errors nor logs repeat it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from pydantic import ValidationError

from yatt_core.errors import ConfigurationError
from yatt_core.logs import JsonLinesFormatter, redact
from yatt_core.secret_references import SecretReference, resolve
from yatt_core.spec.reading.mistakes import parse_model

VALUE = "hunter2-and-more"


def test_a_secret_comes_from_the_environment_a_file_or_a_block(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{VALUE}\n")
    path.chmod(0o600)
    assert resolve(SecretReference(env="KEY"), "key", environment={"KEY": VALUE}) == VALUE
    assert resolve(SecretReference(file=str(path)), "key") == VALUE
    assert resolve(SecretReference(prefect_block="judge"), "key", {"judge": VALUE}.__getitem__) == VALUE


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_text(VALUE)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=rf"the file of key, has mode {mode:04o}.*expected 0600") as raised:
        resolve(SecretReference(file=str(path)), "key")
    assert VALUE not in str(raised.value)


@pytest.mark.parametrize(
    "given", [VALUE, 17, [VALUE], {"value": VALUE}, {}, {"env": "A", "prefect_block": "b"}, {"file": "rel"}]
)
def test_a_literal_secret_and_an_unclear_reference_are_refused(given: object) -> None:
    with pytest.raises(ValidationError) as raised:
        SecretReference.model_validate(given)
    messages = [error["msg"] for error in raised.value.errors(include_input=False)]
    assert messages and VALUE not in "".join(messages)


@pytest.mark.parametrize("way", ["env", "file", "prefect_block"])
def test_a_secret_in_place_of_a_name_is_not_repeated(way: str) -> None:
    with pytest.raises(ConfigurationError, match=f"judge: {way}: expected") as raised:
        parse_model(SecretReference, {way: "sk-Proj-hunter2"}, "judge")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ({"env": "KEY"}, "the environment variable KEY is not set"),
        ({"file": "/nowhere/key"}, "/nowhere/key, the file of key, cannot be read"),
        ({"prefect_block": "judge"}, "a Prefect block cannot be read here"),
    ],
)
def test_a_secret_that_is_not_there_is_named(reference: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        resolve(SecretReference.model_validate(reference), "key", environment={})


def test_a_resolved_secret_never_appears_in_a_log() -> None:
    value = resolve(SecretReference(env="KEY"), "key", environment={"KEY": "plain words of mine"})
    record = logging.LogRecord("x", logging.INFO, "f", 1, f"sent {value}", (), None)
    assert json.loads(JsonLinesFormatter("driver").format(record))["message"] == "sent ***"
    assert redact(f"{value}!") == "***!"


@pytest.mark.parametrize("reference", [SecretReference(file="/nowhere/key"), SecretReference(prefect_block="judge")])
def test_what_people_see_of_a_refusal_is_whole(reference: SecretReference) -> None:
    with pytest.raises(ConfigurationError) as refused:
        resolve(reference, "model.token")
    assert redact(str(refused.value)) == str(refused.value)
