"""`placement.trainer`: what it goes with, how many devices it takes, and that older specs keep their digests."""

from __future__ import annotations

import pytest

from tests.services import ROOT
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec, load_spec
from yatt_core.spec.reading.load import parse_spec

POOL = ("rollout.engine.instances=3", "trainer.engine.ranks=2")
JUDGE = "{kind: generative, name: judge, model: {kind: folder, path: judge}, template: '{response}', max_new_tokens: 4}"
LENT_BESIDE_JUDGES = (
    "placement.trainer=lent",
    "asynchrony.lag=1",
    "placement.mode=split",
    "placement.judges=1",
    f"rewards.parts=[{{name: exact, function: exact_match}}, {JUDGE}]",
)


def spec(*changes: str) -> RunSpec:
    return load_spec(ROOT / "tests" / "specs" / "torch.yaml", [*POOL, *changes])


def test_devices() -> None:
    assert (spec().devices, spec().devices_before_engines, spec().lent_instances) == (3, 0, ())
    apart = spec("placement.trainer=apart", "asynchrony.lag=1")
    assert (apart.devices, apart.devices_before_engines, apart.lent_instances) == (5, 2, ())
    lent = spec("placement.trainer=lent", "asynchrony.lag=2")
    assert (lent.devices, lent.devices_before_engines, lent.lent_instances) == (3, 0, (0, 1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("placement.trainer=apart",), r"placement\.trainer: apart, .* asynchrony\.lag"),
        (("placement.trainer=lent",), r"placement\.trainer: lent, .* asynchrony\.lag"),
        (("placement.trainer=lent", "asynchrony.streamed=true"), r"placement\.trainer: lent, .* asynchrony\.lag"),
        (
            ("placement.trainer=lent", "asynchrony.lag=1", "trainer.engine.ranks=3"),
            r"placement\.trainer: lent, .* at least 4 rollout\.engine\.instances",
        ),
        (
            (
                "placement.trainer=lent",
                "asynchrony.lag=1",
                "rollout.engine={kind: vllm, instances: 3, dtype: float32, tensor_parallel_size: 2}",
            ),
            r"placement\.trainer: lent needs engines of one device",
        ),
        (
            (*LENT_BESIDE_JUDGES, "rollout.engine.instances=3"),
            r"placement\.trainer: lent, .* 2 ranks and 1 judges leave none .* at least 4 rollout\.engine\.instances",
        ),
    ],
)
def test_what_it_does_not_go_with_is_said(changes: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        spec(*changes)


def test_lent_beside_judges_leaves_an_instance_for_rollout() -> None:
    assert spec(*LENT_BESIDE_JUDGES, "rollout.engine.instances=4").lent_instances == (0, 1)


def test_newer_keys_at_their_defaults_change_no_digest() -> None:
    found = spec()
    document = found.model_dump(mode="json")
    assert "trainer" not in document["placement"] and "continuous" not in document["rollout"]["engine"]
    document["placement"]["trainer"] = "shared"
    document["rollout"]["engine"]["continuous"] = False
    assert parse_spec(document, "a ledger").digest == found.digest


def test_continuous_needs_a_number_of_places() -> None:
    with pytest.raises(ConfigurationError, match=r"rollout\.engine.*max_num_seqs: null, but with continuous"):
        spec("rollout.engine={kind: torch, continuous: true}")
    engine = spec("rollout.engine={kind: torch, continuous: true, max_num_seqs: 8}").rollout.engine
    assert engine.continuous and engine.sequence_limit == 8
    bfloat16 = "rollout.engine={kind: torch, dtype: bfloat16, continuous: true, max_num_seqs: 8}"
    assert any("continuous" in said for said in spec(bfloat16).exact_obstacles())
    with pytest.raises(ConfigurationError, match=r"exact: .*rollout\.engine\.dtype"):
        spec(bfloat16, "exact=true")
