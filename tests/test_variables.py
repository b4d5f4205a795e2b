"""Variables of the environment are written once, since a write can move what another thread is reading."""

from __future__ import annotations

import os

import pytest

from yatt_core.variables import default_variables, set_variables


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of the variables that are written from now on."""
    names: list[str] = []
    monkeypatch.setenv("YATT_TEST_KNOWN", "1")
    monkeypatch.delenv("YATT_TEST_NEW", raising=False)
    real = os._Environ.__setitem__

    def write(self: os._Environ[str], name: str, value: str) -> None:
        if name.startswith("YATT_TEST_"):
            names.append(name)
        real(self, name, value)

    monkeypatch.setattr(os._Environ, "__setitem__", write)
    return names


def test_what_has_its_value_is_not_written(written: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables({"YATT_TEST_KNOWN": "1", "YATT_TEST_NEW": "a"})
    set_variables({"YATT_TEST_KNOWN": "2", "YATT_TEST_NEW": "a"})
    assert written == ["YATT_TEST_NEW", "YATT_TEST_KNOWN"]
    assert (os.environ["YATT_TEST_KNOWN"], os.environ["YATT_TEST_NEW"]) == ("2", "a")
    monkeypatch.delenv("YATT_TEST_NEW")


def test_what_has_any_value_keeps_it(written: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    default_variables({"YATT_TEST_KNOWN": "2", "YATT_TEST_NEW": "a"})
    assert written == ["YATT_TEST_NEW"] and os.environ["YATT_TEST_KNOWN"] == "1"
    monkeypatch.delenv("YATT_TEST_NEW")
