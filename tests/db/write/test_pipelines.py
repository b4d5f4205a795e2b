"""Two processes that create the first run of a pipeline at the same moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from db.ledger import Ledger
from db.write.pipelines import NewPipeline

NEW = NewPipeline("line", "digest", {"name": "line"}, "/", "ann")
AT_ONCE = 4


@pytest.mark.postgresql
def test_the_first_run_of_a_name_is_created_by_several_at_once(ledger: Ledger) -> None:
    barrier = threading.Barrier(AT_ONCE)

    def create(name: str, digest: str) -> str:
        barrier.wait()
        return ledger.pipelines.create(replace(NEW, name=name, digest=digest)).id

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for attempt in range(10):
            name = f"line-{attempt}"
            assert set(pool.map(create, [name] * AT_ONCE, [NEW.digest] * AT_ONCE)) == {f"{name}-1"}
