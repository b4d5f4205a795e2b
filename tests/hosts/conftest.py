from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.network import Hosts, NoHostsError


@pytest.fixture
def two_hosts() -> Iterator[Hosts]:
    """Two hosts; skips the test where they cannot be made."""
    try:
        hosts = Hosts(2)
    except NoHostsError as error:
        pytest.skip(str(error))
    with hosts:
        yield hosts
