"""Sabotages are up to date: each patch applies to the product and names an existing test."""

from __future__ import annotations

import pytest

from tests.sabotage.patch import ROOT, Sabotage, all_sabotages

SABOTAGES = all_sabotages()


def test_there_are_as_many_as_protections() -> None:
    assert len({sabotage.protection for sabotage in SABOTAGES}) == len(SABOTAGES) >= 10


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.file.stem)
def test_it_still_applies(sabotage: Sabotage) -> None:
    applied = sabotage.apply(ROOT, "--check")
    assert applied.returncode == 0, applied.stderr
    file, *names = sabotage.test.split("::")
    assert f"def {names[-1].partition('[')[0]}(" in (ROOT / file).read_text()
