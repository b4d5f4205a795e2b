"""The way to multiply bfloat16 follows from the processor's features alone; a slow one is said, with rates."""

from __future__ import annotations

import logging

import pytest
import torch

from yatt_core.bfloat16 import choice
from yatt_core.bfloat16 import way as module
from yatt_core.bfloat16.choice import MatmulRates, measured_rates, products_of, said_of_products, slow_remark
from yatt_core.bfloat16.products import NATIVE, WIDENED
from yatt_core.bfloat16.way import INSTRUCTIONS, chosen_way, way_of_processor

X86 = {"architecture": "x86_64", "avx2": True, "avx512_f": False, "avx512_bf16": False, "amx_bf16": False}


@pytest.mark.parametrize(
    ("capabilities", "library", "way"),
    [
        (X86, False, "widened"),
        (X86 | {"avx512_f": True}, True, "widened"),  # oneDNN imitates the instructions
        (X86 | {"avx512_f": True, "avx512_bf16": True}, True, "native"),
        (X86 | {"avx512_f": True, "amx_bf16": True}, True, "native"),
        (X86 | {"avx512_f": True, "avx512_bf16": True}, False, "widened"),  # the library is limited or missing
        ({"architecture": "aarch64"}, True, "native"),
        ({"architecture": "aarch64"}, False, "widened"),
    ],
)
def test_features_decide(capabilities, library, way):
    assert chosen_way(capabilities, library) == way


def test_torch_knows_the_features_by_these_names():
    capabilities = torch.cpu.get_capabilities()
    assert "architecture" in capabilities
    if capabilities["architecture"] == "x86_64":
        assert all(name in capabilities for name in INSTRUCTIONS)


@pytest.mark.parametrize(
    ("avx512_bf16", "amx_tile", "way"),
    [(False, False, "widened"), (True, False, "native"), (False, True, "native")],
)
def test_versions_of_torch_without_capabilities_are_asked_for_each_feature(monkeypatch, avx512_bf16, amx_tile, way):
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx_tile)
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(module, "_library_multiplies", lambda: True)
    assert way_of_processor.__wrapped__() == way


@pytest.mark.parametrize("way", ["native", "widened"])
def test_only_bfloat16_on_a_cpu_is_widened(way, monkeypatch):
    monkeypatch.setattr(choice, "way_of_processor", lambda: way)
    cpu = torch.device("cpu")
    meta = torch.device("meta")
    expected = {"native": NATIVE, "widened": WIDENED}[way]
    assert products_of(torch.bfloat16, cpu) is expected
    assert products_of(torch.float32, cpu) is products_of(torch.bfloat16, meta) is NATIVE
    assert f"are {way}" in said_of_products(expected)


@pytest.fixture
def look_again():
    choice._warn_if_slow.cache_clear()
    yield
    choice._warn_if_slow.cache_clear()


def test_a_process_warns_once_with_rates_if_products_are_slow_and_chooses_the_same(monkeypatch, caplog, look_again):
    monkeypatch.setattr(choice, "measured_rates", lambda products: MatmulRates(float32=51.0, bfloat16=0.4))
    cpu = torch.device("cpu")
    with caplog.at_level(logging.WARNING, "yatt_core.bfloat16"):
        chosen = [products_of(torch.bfloat16, cpu) for _ in range(2)]
    assert chosen == [WIDENED if way_of_processor() == "widened" else NATIVE] * 2
    (said,) = caplog.messages
    assert "0.4 GFLOP/s in bfloat16, 51 in float32" in said
    assert "dtype: float32" in said


def test_a_process_that_multiplies_fast_does_not_warn(monkeypatch, caplog, look_again):
    monkeypatch.setattr(choice, "measured_rates", lambda products: MatmulRates(float32=51.0, bfloat16=45.0))
    with caplog.at_level(logging.WARNING, "yatt_core.bfloat16"):
        products_of(torch.bfloat16, torch.device("cpu"))
    assert not caplog.messages


@pytest.mark.parametrize("products", [NATIVE, WIDENED])
def test_the_probe_measures_both_types(products):
    rates = measured_rates(products)
    assert rates.float32 > 0.0
    assert rates.bfloat16 > 0.0
    assert products.way in slow_remark(products, rates)


def test_a_third_of_the_rate_is_slow():
    assert MatmulRates(float32=60.0, bfloat16=19.0).slow
    assert not MatmulRates(float32=60.0, bfloat16=21.0).slow
