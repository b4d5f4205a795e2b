"""A backup of a run with an object store has its files, also those that only the store has, or has intact."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.backup.folder import BackupFolder
from flows.backup.restore import restore_backup
from flows.files.storage import claim_store
from flows.reports.audit import verify_run
from flows.run.creation import current_spec
from flows.run.home import Home
from tests.flows.backup.scenarios import backup_of
from tests.matrix import in_verify
from tests.object_store.test_two_tiers import sound as sound_fixture
from yatt_core.storage.objects import ObjectStore

sound = sound_fixture


def test_what_only_the_store_has_is_in_the_backup(
    sound: tuple[Home, str], tmp_path: Path, objects: ObjectStore
) -> None:
    home, run = sound
    whole = backup_of(home, tmp_path / "whole")
    (weights,) = home.run_folder(run).glob("checkpoints/b000-i000002.*/weights.safetensors")
    weights.write_bytes(b"damaged")
    damaged = backup_of(home, tmp_path / "damaged")
    shutil.rmtree(home.run_folder(run))
    lost = backup_of(home, tmp_path / "lost")
    for made in (damaged, lost):
        assert (made.manifest.lacking, made.cuts) == ({}, 1)
        same = {name: file.sha256 for name, file in whole.manifest.files.items() if name.startswith(run)}
        assert {name: file.sha256 for name, file in made.manifest.files.items() if name.startswith(run)} == same
    new = Home(tmp_path / "elsewhere")
    restore_backup(BackupFolder(tmp_path / "lost"), lost.id, new, new.ledger_address)
    with Ledger.open(new.ledger) as ledger:
        assert verify_run(ledger, run, new.run_folder(run), None).sound
        claim_store(ledger, run, current_spec(ledger, run), new.run_folder(run))  # the prefix is still the run's


@pytest.mark.parametrize("missing", [True, *in_verify(False)])
def test_what_neither_tier_has_is_recorded(sound: tuple[Home, str], tmp_path: Path, url: str, missing: bool) -> None:
    home, run = sound
    (folder,) = home.run_folder(run).glob("checkpoints/b000-i000002.*")
    store = ObjectStore(url)
    store.delete([f"{run}/checkpoints/{folder.name}/manifest.json"])
    if missing:
        shutil.rmtree(folder)
    else:
        (folder / "weights.safetensors").write_bytes(b"damaged")
    made = backup_of(home, tmp_path / "backups")
    assert list(made.manifest.lacking) == [f"{run}/checkpoints/{folder.name}"]
