"""What each model says of a triple, told by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from yatt_workloads.kge.models import EmbeddingModel, make_model, orthogonal
from yatt_workloads.kge.settings import MemberSettings

WIDTH = 8
RELATIONAL = ("transe", "rotate", "quate", "ote", "note")


def model_of(kind: str) -> tuple[EmbeddingModel, dict[str, torch.Tensor]]:
    model = make_model(MemberSettings.model_validate({"model": kind, "width": WIDTH}))
    noise = torch.Generator().manual_seed(1)
    parameters = model.begin(3, noise)
    if "scale" in parameters:
        parameters["scale"] = torch.randn(parameters["scale"].shape, generator=noise)
    return model, parameters


@pytest.mark.parametrize("kind", RELATIONAL)
def test_asking_for_the_head_undoes_asking_for_the_tail(kind: str) -> None:
    model, parameters = model_of(kind)
    heads = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(2))
    relation = torch.tensor([0, 1, 2, 1, 0])
    tails = model.query(parameters, heads, relation, inverse=False)
    assert (tails - heads).abs().max() > 0.1
    torch.testing.assert_close(model.query(parameters, tails, relation, inverse=True), heads)


@pytest.mark.parametrize("kind", RELATIONAL)
def test_no_entity_scores_above_the_expected_one(kind: str) -> None:
    model, parameters = model_of(kind)
    noise = torch.Generator().manual_seed(2)
    query = model.query(parameters, torch.randn(1, WIDTH, generator=noise), torch.tensor([1]), inverse=False)
    others = torch.randn(1, 9, WIDTH, generator=noise)
    others *= query.norm() / others.norm(dim=-1, keepdim=True)
    scores = model.score(query, torch.cat([query[None], others], 1))[0]
    assert scores.argmax() == 0 and not scores.isnan().any()


def test_blocks_are_orthogonal() -> None:
    noise = torch.Generator().manual_seed(3)
    matrices = torch.randn(6, 4, 4, generator=noise, dtype=torch.float64)
    found = orthogonal(matrices)
    torch.testing.assert_close(found @ found.mT, torch.eye(4, dtype=torch.float64).expand(6, 4, 4))
    lower = matrices @ found.mT
    assert lower.triu(1).abs().max() < 1e-12, "each row is a sum of the rows up to it"


def test_only_norm_ote_keeps_the_size_of_a_block() -> None:
    """All scales of a relation grow tenfold: OTE's queries do too, Norm-OTE's stay."""
    heads = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(2))
    relation = torch.zeros(4, dtype=torch.long)
    grown = {}
    for kind in ("ote", "note"):
        model, parameters = model_of(kind)
        larger = {**parameters, "scale": parameters["scale"] + torch.tensor(10.0).log()}
        before, after = (model.query(each, heads, relation, inverse=False) for each in (parameters, larger))
        grown[kind] = float(after.norm() / before.norm())
    assert grown["ote"] == pytest.approx(10, rel=1e-4) and grown["note"] == pytest.approx(1, rel=1e-4)


def test_distances_and_products_by_hand() -> None:
    ones = torch.ones(1, WIDTH)
    zero = torch.zeros(1, 1, WIDTH)
    expected = {"transe": 6 - 8.0, "rotate": 6 - 4 * 2**0.5, "ote": 6 - 2 * 4**0.5, "quate": 0, "deepwalk": 0}
    for kind, score in expected.items():
        assert float(model_of(kind)[0].score(ones, zero)) == pytest.approx(score, abs=1e-4), kind
    assert float(model_of("deepwalk")[0].score(ones, ones[None])) == WIDTH


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"model": "quate", "width": 6}, "quate needs a multiple of 4"),
        ({"model": "note", "width": 6}, "note needs a multiple of 4"),
        ({"model": "deepwalk", "smoothing": 0.1}, "deepwalk has no relations"),
        ({"model": "complex"}, "Input should be 'transe'"),
        ({"model": "ote", "wide": 8}, "wide"),
        ({"model": "ote", "width": "8"}, "width"),
        ({"model": "ote", "margin": True}, "margin"),
        ({"model": "ote", "rate": float("nan")}, "rate"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        MemberSettings.model_validate(settings)
