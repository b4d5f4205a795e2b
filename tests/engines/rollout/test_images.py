"""The torch rollout engine on prompts with images: the same bits in every batch, and agreement with transformers."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.pictures import (
    IMAGE_TOKEN,
    VOCABULARY,
    make_vision_folder,
    plain_logits,
    prompt_with,
    store_pictures,
)
from tests.engines.rollout.cases import request_of, result_digest, rows_of
from yatt_core.engines import images as images_module
from yatt_core.engines.images import ShownPrompts, embed_prompts, open_reader
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.errors import DataError
from yatt_core.models.loading import load_causal_lm
from yatt_core.prompts.media import media_path
from yatt_core.protocols.generation import GenerateRequest

PROMPTS = 60


def vision_engine(folder: Path, inputs_folder: Path) -> TorchRolloutEngine:
    engine = TorchRolloutEngine(str(folder), "float32", 320, 24, inputs_folder)
    engine.update_weights(vision_weights(folder), 0)
    return engine


def vision_weights(folder: Path) -> dict[str, np.ndarray]:
    """Returns the folder's weights under the module's names; the family's files use older names."""
    state = load_causal_lm(str(folder), "float32").state_dict()
    return {name: tensor.numpy() for name, tensor in state.items() if name != "lm_head.weight"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns a model folder and an inputs folder."""
    return make_vision_folder(tmp_path_factory.mktemp("vision")), tmp_path_factory.mktemp("inputs")


@pytest.fixture(scope="module")
def engine(place: tuple[Path, Path]) -> TorchRolloutEngine:
    return vision_engine(*place)


def shown_request(inputs_folder: Path, members: list[int], **options: Any) -> GenerateRequest:
    """Builds a request from some of sixty prompts, each with zero to three images, some shared, and its own seed."""
    addresses = store_pictures(inputs_folder, 40)
    noise = np.random.default_rng(5)
    counts = noise.choice([0, 1, 1, 1, 2, 3], PROMPTS)
    lengths = noise.integers(1, 60, PROMPTS)
    media = [tuple(addresses[i] for i in noise.integers(0, 40, count)) for count in counts]
    prompts = [prompt_with(len(media[i]), int(lengths[i]), i) for i in members]
    options.setdefault("seeds", np.arange(PROMPTS, dtype=np.uint64)[members, None])
    return request_of(prompts, media=[media[i] for i in members], **options)


def test_a_response_does_not_depend_on_its_batch(engine: TorchRolloutEngine, place: tuple[Path, Path]) -> None:
    def answer(members: list[int]) -> dict[int, Any]:
        result = engine.generate(shown_request(place[1], members, temperature=0.8))
        return dict(zip(members, rows_of(result), strict=True))

    everything = answer(list(range(PROMPTS)))
    assert len(set(everything.values())) > 55
    alone = [[member] for member in range(6)]
    for members in (*alone, [7, 3, 50], list(range(32)), list(range(59, 30, -1))):
        assert answer(members) == {member: everything[member] for member in members}
    reordered = np.random.default_rng(2).permutation(PROMPTS).tolist()
    assert answer(reordered) == everything


def test_a_response_does_not_depend_on_its_group(engine: TorchRolloutEngine, place: tuple[Path, Path]) -> None:
    seeds = np.arange(24, dtype=np.uint64).reshape(2, 12)
    grouped = rows_of(engine.generate(shown_request(place[1], [1, 2], seeds=seeds)))
    alone = rows_of(engine.generate(shown_request(place[1], [2], seeds=seeds[1:, 4:5])))
    assert alone == [grouped[16]]


@pytest.mark.verify
def test_a_fresh_process_gives_the_same_bits(engine: TorchRolloutEngine, place: tuple[Path, Path]) -> None:
    expected = result_digest(engine.generate(shown_request(place[1], list(range(20)))))
    command = [sys.executable, "-m", "tests.engines.rollout.test_images", *map(str, place)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout == expected


def test_log_probabilities_match_transformers(engine: TorchRolloutEngine, place: tuple[Path, Path]) -> None:
    request = shown_request(place[1], list(range(12)), temperature=0.7)
    model: Any = load_causal_lm(str(place[0]), "float32")
    largest = 0.0
    for row, (tokens, log_probs, _) in enumerate(rows_of(engine.generate(request))):
        prompt = request.prompts[row].tolist()
        response = np.frombuffer(tokens, np.int32).tolist()
        if IMAGE_TOKEN in response:
            continue  # transformers would expect an image there
        with torch.no_grad():
            logits = plain_logits(model, *place, [*prompt, *response], request.media[row])
        expected = torch.log_softmax(logits[len(prompt) - 1 : -1] / 0.7, -1)[torch.arange(len(response)), response]
        largest = max(
            largest, float((expected - torch.from_numpy(np.frombuffer(log_probs, np.float32).copy())).abs().max())
        )
    assert 0 < largest < 1e-5


def test_a_later_turn_shows_only_the_images_of_its_question(
    engine: TorchRolloutEngine, place: tuple[Path, Path]
) -> None:
    (address,) = store_pictures(place[1], 1)
    question = prompt_with(1, 4, 0)
    earlier = np.array([3, IMAGE_TOKEN, 5], np.int32)
    request = request_of([np.concatenate([question, earlier])], samples=4, media=[(address,)])
    with pytest.raises(DataError, match=r"prompt 0 of the decode batch .*\b10 .*\b1 images need 9\b"):
        engine.generate(request)
    rows = rows_of(engine.generate(replace(request, question_lengths=np.array([len(question)], np.int32))))
    model: Any = load_causal_lm(str(place[0]), "float32")
    embeddings = embed_prompts(
        model,
        open_reader(model, str(place[0]), place[1]),
        torch.from_numpy(request.prompts[0].astype(np.int64))[None],
        ShownPrompts(torch.tensor([len(question)]), request.media, ["the prompt"]),
    )
    with torch.no_grad():
        logits = model(inputs_embeds=embeddings).logits[0, -1]
    first = [np.frombuffer(tokens, np.int32)[0] for tokens, _, _ in rows]
    found = [np.frombuffer(log_probs, np.float32)[0] for _, log_probs, _ in rows]
    assert np.allclose(torch.log_softmax(logits, -1)[first].numpy(), found, atol=1e-5)


def test_other_images_give_other_responses(engine: TorchRolloutEngine, place: tuple[Path, Path]) -> None:
    prompts = [prompt_with(1, 4, 0)] * 8
    addresses = store_pictures(place[1], 8)
    seeds = np.zeros((8, 1), np.uint64)
    rows = rows_of(engine.generate(request_of(prompts, seeds=seeds, media=[(address,) for address in addresses])))
    assert len({log_probs for _, log_probs, _ in rows}) == 8


def test_a_request_carries_addresses_and_a_result_carries_no_image(
    engine: TorchRolloutEngine, place: tuple[Path, Path]
) -> None:
    request = shown_request(place[1], [1])
    assert len(pickle.dumps(request)) < 2000
    assert len(pickle.dumps(engine.generate(request))) < 2000


def test_only_few_images_are_held_decoded_at_a_time(
    engine: TorchRolloutEngine, place: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    read = images_module.ImageReader.pixels

    def watched(reader: images_module.ImageReader, addresses: Any) -> torch.Tensor:
        decoded.append(len(addresses))
        return read(reader, addresses)

    monkeypatch.setattr(images_module.ImageReader, "pixels", watched)
    request = shown_request(place[1], list(range(PROMPTS)), samples=2, max_new_tokens=1)
    engine.generate(request)
    assert max(decoded) <= images_module.PASS_IMAGES
    assert sum(decoded) < 2 * sum(len(media) for media in request.media), "once per prompt, not once per response"


@pytest.mark.parametrize("images", [0, 2])
def test_images_that_do_not_fit_their_placeholders_name_the_prompt(
    engine: TorchRolloutEngine, place: tuple[Path, Path], images: int
) -> None:
    prompts = [prompt_with(0, 3, 0), prompt_with(1, 3, 1)]
    wrong = request_of(prompts, media=[(), tuple(store_pictures(place[1], images))])
    with pytest.raises(DataError, match=rf"prompt 1 of the decode batch .*\b9 .*\b{images} images"):
        engine.generate(wrong)


def test_a_damaged_image_and_a_missing_one_are_refused(tmp_path: Path, place: tuple[Path, Path]) -> None:
    engine = vision_engine(place[0], tmp_path)
    address = store_pictures(tmp_path, 1)[0]
    request = request_of([prompt_with(1, 3, 0)], media=[(address,)])
    path = media_path(tmp_path, address)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=address):
        engine.generate(request)
    path.unlink()
    with pytest.raises(DataError, match=address):
        engine.generate(request)


def test_bytes_that_are_not_an_image_are_refused_by_address(tmp_path: Path, place: tuple[Path, Path]) -> None:
    data = b"no image"
    address = hashlib.sha256(data).hexdigest()
    media_path(tmp_path, address).parent.mkdir(parents=True)
    media_path(tmp_path, address).write_bytes(data)
    with pytest.raises(DataError, match=f"image {address} of the run's inputs"):
        vision_engine(place[0], tmp_path).generate(request_of([prompt_with(1, 3, 0)], media=[(address,)]))


def test_a_text_only_model_refuses_images(torch_engine: Any) -> None:
    request = request_of([np.array([2, 3], np.int32)], media=[(hashlib.sha256(b"").hexdigest(),)])
    with pytest.raises(DataError, match="prompt 0 of the decode batch"):
        torch_engine.engine.generate(request)


def test_updated_weights_reach_the_vision_tower(place: tuple[Path, Path]) -> None:
    engine = vision_engine(*place)
    request = shown_request(place[1], [1])
    before = rows_of(engine.generate(request))
    tensors = vision_weights(place[0])
    tensors["model.vision_tower.embeddings.patch_embedding.weight"] *= 1.5
    engine.update_weights(tensors, 1)
    assert rows_of(engine.generate(replace(request, weight_version=1))) != before


def main() -> None:
    """Answers a batch in a separate process."""
    folder, inputs_folder = map(Path, sys.argv[1:])
    result = vision_engine(folder, inputs_folder).generate(shown_request(inputs_folder, list(range(20))))
    sys.stdout.write(result_digest(result))


if __name__ == "__main__":
    assert VOCABULARY > IMAGE_TOKEN
    main()
