"""Prompts with images in vLLM: agreement with transformers, the same bits in every batch, updates that reach the tower."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.pictures import IMAGE_TOKEN, make_vision_folder, prompt_with, store_pictures
from tests.engines.rollout.cases import MAX_NEW, MAX_PROMPT, request_of, rows_of
from tests.engines.rollout.test_images import shown_request, vision_weights
from yatt_core.engines.rectangles import rectangle_digest
from yatt_core.engines.rollout.served.engine import ServedRolloutEngine
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.rollout.vllm.launch import VLLM_LAUNCH
from yatt_core.errors import DataError
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.wire.parts import Box, Rectangle

HIDDEN = 128
"""vLLM's attention on CPUs needs heads of at least 32."""
PATCH_WEIGHT = "model.vision_tower.embeddings.patch_embedding.weight"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns a model folder and an inputs folder."""
    folder = make_vision_folder(tmp_path_factory.mktemp("vision"), hidden_size=HIDDEN, tower_heads=4)
    return folder, tmp_path_factory.mktemp("inputs")


def vllm_engine(place: tuple[Path, Path], **settings: Any) -> ServedRolloutEngine:
    spec = VllmRollout(**{"instances": 1, "dtype": "float32", **settings})
    return ServedRolloutEngine(VLLM_LAUNCH, str(place[0]), spec, MAX_PROMPT, MAX_NEW, inputs_folder=place[1])


@pytest.fixture(scope="module")
def weights(place: tuple[Path, Path]) -> dict[str, np.ndarray]:
    return vision_weights(place[0])


@pytest.fixture(scope="module")
def engine(place: tuple[Path, Path], weights: dict[str, np.ndarray]) -> Any:
    engine = vllm_engine(place)
    engine.update_weights(weights, 0)
    yield engine
    engine.close()


def difference(rows: list[Any], others: list[Any]) -> float:
    """Returns the largest difference of log-probabilities of responses with the same tokens; there must be such."""
    same = [(one[1], other[1]) for one, other in zip(rows, others, strict=True) if one[0] == other[0]]
    assert len(same) > 0.9 * len(rows)
    return max(float(np.abs(np.frombuffer(a, np.float32) - np.frombuffer(b, np.float32)).max()) for a, b in same)


def test_greedy_responses_are_those_of_the_torch_engine(
    engine: ServedRolloutEngine, place: tuple[Path, Path], weights: dict[str, np.ndarray]
) -> None:
    reference = TorchRolloutEngine(str(place[0]), "float32", MAX_PROMPT, MAX_NEW, place[1])
    reference.update_weights(weights, 0)
    request = shown_request(place[1], list(range(30)), greedy=True)
    assert difference(rows_of(engine.generate(request)), rows_of(reference.generate(request))) < 1e-5


def test_a_response_does_not_depend_on_its_batch(engine: ServedRolloutEngine, place: tuple[Path, Path]) -> None:
    whole = rows_of(engine.generate(shown_request(place[1], list(range(40)), temperature=0.8)))
    for members in ([0], [3], [7, 3, 30], list(range(39, 20, -1))):
        found = rows_of(engine.generate(shown_request(place[1], members, temperature=0.8)))
        assert found == [whole[member] for member in members]


def test_other_images_give_other_responses(engine: ServedRolloutEngine, place: tuple[Path, Path]) -> None:
    addresses = store_pictures(place[1], 8)
    request = request_of(
        [prompt_with(1, 4, 0)] * 8, seeds=np.zeros((8, 1), np.uint64), media=[(address,) for address in addresses]
    )
    assert len({log_probs for _, log_probs, _ in rows_of(engine.generate(request))}) == 8


def test_a_later_turn_shows_only_the_images_of_its_question(
    engine: ServedRolloutEngine, place: tuple[Path, Path]
) -> None:
    (address,) = store_pictures(place[1], 1)
    question = prompt_with(1, 4, 0)
    earlier = np.array([3, IMAGE_TOKEN, 5], np.int32)
    request = request_of([np.concatenate([question, earlier])], samples=4, media=[(address,)])
    with pytest.raises(DataError, match=r"prompt 0 of the decode batch .*\b10 .*\b1 images need 9\b"):
        engine.generate(request)
    engine.generate(replace(request, question_lengths=np.array([len(question)], np.int32)))


def test_wrong_images_name_the_prompt(engine: ServedRolloutEngine, place: tuple[Path, Path]) -> None:
    prompts = [prompt_with(0, 3, 0), prompt_with(1, 3, 1)]
    addresses = store_pictures(place[1], 2)
    for media, told in (((), "0 images"), (tuple(addresses), "2 images"), (("0" * 64,), "0" * 64)):
        with pytest.raises(DataError, match=told):
            engine.generate(request_of(prompts, media=[(), media]))
    answers = engine.generate(request_of(prompts, media=[(), (addresses[0],)]))
    assert len(answers.lengths) == 2, "the prompts before a wrong one are not left behind"


def test_updated_weights_reach_the_vision_tower_and_back(
    engine: ServedRolloutEngine, place: tuple[Path, Path], weights: dict[str, np.ndarray]
) -> None:
    request = shown_request(place[1], list(range(6)))
    before = rows_of(engine.generate(request))
    engine.update_weights({**weights, PATCH_WEIGHT: weights[PATCH_WEIGHT] * np.float32(1.5)}, 1)
    assert rows_of(engine.generate(replace(request, weight_version=1))) != before
    engine.update_weights(weights, 0)
    assert rows_of(engine.generate(request)) == before


def test_every_tensor_can_be_compared_with_what_was_sent(
    engine: ServedRolloutEngine, weights: dict[str, np.ndarray]
) -> None:
    rectangles = [
        Rectangle(name, array.shape, Box((0,) * array.ndim, array.shape), "float32") for name, array in weights.items()
    ]
    import torch

    expected = [
        rectangle_digest(rectangle, torch.from_numpy(weights[rectangle.name].copy())) for rectangle in rectangles
    ]
    found = engine.rectangle_digests(rectangles)
    assert found == expected, [
        r.name for r, a, b in zip(rectangles, found or expected, expected, strict=True) if a != b
    ]


@pytest.mark.verify
def test_two_devices_answer_as_one(place: tuple[Path, Path], weights: dict[str, np.ndarray]) -> None:
    request = shown_request(place[1], list(range(12)), greedy=True)
    engines = [vllm_engine(place), vllm_engine(place, tensor_parallel_size=2)]
    answers = []
    for engine in engines:
        engine.update_weights(weights, 0)
        answers.append(rows_of(engine.generate(request)))
        engine.close()
    assert difference(*answers) < 1e-5
