"""The pools file: what it may say, and what is said about mistakes in it."""

from __future__ import annotations

import pytest

from flows.queueing.pools import parse_pools
from yatt_core.errors import ConfigurationError

TREE = {
    "pools": {
        "main": {"gpus": [2, 0, 1], "quotas": {"chat": 2}},
        "spot": {"devices": 4, "spot": True, "price": {"currency": "EUR", "per_device_hour": 1.5}},
    },
    "devices_per_owner": 3,
    "owners": {"ada": 4},
}


def test_devices_are_numbered_from_zero_and_gpus_as_they_are() -> None:
    pools = parse_pools(TREE, "pools.yaml")
    assert (pools.pool("spot").numbers, pools.pool("main").numbers) == ((0, 1, 2, 3), (0, 1, 2))


def test_the_largest_run_of_a_person_respects_pool_limit_and_quota() -> None:
    pools = parse_pools(TREE, "pools.yaml")
    assert [pools.most_devices("spot", who, "code") for who in ("ada", "ben")] == [4, 3]
    assert pools.most_devices("main", "ada", "chat") == 2


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"pools": {"main": {"device": 4}}}, "pools.main.device: unknown key; did you mean 'devices'?"),
        ({"pools": {"main": {}}}, "pools.main: expected either devices or gpus"),
        ({"pools": {"main": {"devices": 1, "gpus": [0]}}}, "pools.main: expected either devices or gpus"),
        ({"pools": {"main": {"gpus": [0, 0]}}}, "pools.main: gpus: expected different numbers from 0"),
        ({"pools": {"a": {"gpus": [0]}, "b": {"gpus": [0]}}}, "pools.b.gpus: GPU 0 belongs to pool a already"),
        (
            {"pools": {"main": {"devices": 1, "price": {"currency": "€", "per_device_hour": 1}}}},
            "pools.main.price.currency",
        ),
        ({"pools": {}}, "pools: "),
        ({"pools": {"a,b": {"devices": 1}}}, "pools: 'a,b': expected a name"),
        (
            {
                "pools": {
                    name: {"devices": 1, "price": {"currency": currency, "per_device_hour": 1}}
                    for name, currency in (("a", "EUR"), ("b", "USD"))
                }
            },
            "pools: prices in EUR and USD; expected one currency",
        ),
        ({"pools": {"main": {"devices": 4}}, "fair_share": {"half_life": 3}}, "did you mean 'half_life_hours'?"),
    ],
)
def test_mistakes_name_file_and_key(tree: object, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_pools(tree, "pools.yaml")
    assert f"pools.yaml: {said}" in str(caught.value) or (said.startswith("did") and said in str(caught.value))


def test_an_unknown_pool_names_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="there is no pool 'man'; did you mean 'main'"):
        parse_pools(TREE, "pools.yaml").pool("man")
