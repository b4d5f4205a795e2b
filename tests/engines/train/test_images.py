"""The trainer on prompts with images: parity with plain transformers, gradients to every part, resumption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn
from transformers import LlavaConfig, LlavaForConditionalGeneration

from tests.engines.pictures import IMAGE_TOKEN, make_vision_folder, plain_logits, prompt_with, store_pictures
from tests.engines.train.support import (
    ONLY_FILE,
    batch_of,
    make_engine,
    make_spec,
    random_rows,
    update,
    weights_of,
    write_shards,
)
from yatt_core.engines.images import ImageReader
from yatt_core.engines.train.model.forward import PolicyForward, assemble
from yatt_core.errors import DataError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.models.loading import load_causal_lm
from yatt_core.protocols.receipts import BatchTask

UNUSED = "post_layernorm"
"""The tower's last norm, which the family does not use: it takes the output of the last block."""


@pytest.fixture(scope="module")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_folder(tmp_path_factory.mktemp("vision"))


def images_task(run_folder: Path, iteration: int) -> BatchTask:
    """Seals random experience whose prompts show zero to three images."""
    rows = random_rows(iteration, vocabulary=IMAGE_TOKEN)
    addresses = store_pictures(run_folder / "inputs", 8)
    for row in rows:
        noise = np.random.default_rng(row["prompt_ordinal"])
        images = row["prompt_ordinal"] % 4
        row["prompt_tokens"] = prompt_with(images, len(row["prompt_tokens"]), row["prompt_ordinal"]).tolist()
        row["media"] = " ".join(addresses[i] for i in noise.integers(0, 8, images))
    return write_shards(run_folder, iteration, rows)


def plain_log_probs(model: Any, folder: Path, run_folder: Path, batch: ExperienceBatch, index: int) -> torch.Tensor:
    """Computes the log-probabilities of one response's tokens at temperature 0.8, with transformers alone."""
    prompt = batch.prompt_tokens[batch.prompt_offsets[index] : batch.prompt_offsets[index + 1]].tolist()
    response = batch.response_tokens[batch.response_offsets[index] : batch.response_offsets[index + 1]].tolist()
    logits = plain_logits(model, folder, run_folder / "inputs", [*prompt, *response], batch.media[index])
    return torch.log_softmax(logits[len(prompt) - 1 : -1] / 0.8, -1)[torch.arange(len(response)), response]


def test_log_probabilities_equal_those_of_transformers(tmp_path: Path, vision_folder: Path) -> None:
    batch = batch_of(tmp_path, images_task(tmp_path, 1))
    assert {len(media) for media in batch.media} >= {0, 1, 3}
    model = load_causal_lm(str(vision_folder), "float32")
    forward = PolicyForward(model, 0.8, "float32", ImageReader(str(vision_folder), tmp_path / "inputs"))
    for indices in ([0], [23, 4, 5, 9, 17], list(range(24))):
        micro_batch = assemble(batch, np.array(indices))
        with torch.no_grad():
            found = forward.log_probs(micro_batch)
            plain = [plain_log_probs(model, vision_folder, tmp_path, batch, index) for index in indices]
        masks = [batch.loss_mask[batch.response_offsets[i] : batch.response_offsets[i + 1]] for i in indices]
        torch.testing.assert_close(found, torch.cat(plain)[torch.from_numpy(np.concatenate(masks))], atol=1e-5, rtol=0)


def test_a_sampled_placeholder_is_a_token_like_any_other(tmp_path: Path, vision_folder: Path) -> None:
    rows = random_rows(1, prompts=2, samples=2, vocabulary=IMAGE_TOKEN)
    address = store_pictures(tmp_path / "inputs", 1)[0]
    for row in rows:
        row |= {"prompt_tokens": prompt_with(1, 3, 0).tolist(), "media": address}
    rows[0] |= {"response_tokens": [5, IMAGE_TOKEN, 7], "log_probs_sampler": [-1.0] * 3, "loss_mask": [True] * 3}
    batch = batch_of(tmp_path, write_shards(tmp_path, 1, rows))
    model = load_causal_lm(str(vision_folder), "float32")
    forward = PolicyForward(model, 1.0, "float32", ImageReader(str(vision_folder), tmp_path / "inputs"))
    assert torch.isfinite(forward.log_probs(assemble(batch, np.arange(4)))).all()


def test_gradients_equal_those_of_transformers_and_reach_every_part(tmp_path: Path, vision_folder: Path) -> None:
    batch = batch_of(tmp_path, images_task(tmp_path, 1))
    gradients: list[dict[str, torch.Tensor]] = []
    for plain in (False, True):
        model: Any = load_causal_lm(str(vision_folder), "float32")
        if plain:
            folders = (vision_folder, tmp_path)
            parts = [plain_log_probs(model, *folders, batch, index) for index in range(len(batch))]
            total = (torch.cat(parts) * torch.from_numpy(batch.loss_mask)).sum()
        else:
            forward = PolicyForward(model, 0.8, "float32", ImageReader(str(vision_folder), tmp_path / "inputs"))
            total = torch.stack(
                [forward.log_probs(assemble(batch, indices)).sum() for indices in np.array_split(np.arange(24), 3)]
            ).sum()
        total.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if UNUSED not in name})
    largest = max(float(gradient.abs().max()) for gradient in gradients[1].values())
    for name, gradient in gradients[1].items():
        assert gradients[0][name].abs().max() > 0, name
        torch.testing.assert_close(gradients[0][name], gradient, atol=1e-6 * largest, rtol=0, msg=name)


def plain_step(model: nn.Module, optimizer: Any, folder: Path, run_folder: Path, batch: ExperienceBatch) -> float:
    """Takes one token-mean GRPO step straight from the formulas."""
    rewards = batch.rewards.reshape(-1, 4)
    advantage = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)
    total = torch.zeros(())
    for index, value in enumerate(advantage.reshape(-1).tolist()):
        mask = torch.tensor(batch.loss_mask[batch.response_offsets[index] : batch.response_offsets[index + 1]])
        log_probs = plain_log_probs(model, folder, run_folder, batch, index)
        total = total - ((log_probs - log_probs.detach()).exp() * value * mask).sum()
    optimizer.zero_grad(set_to_none=False)
    (total / int(batch.loss_mask.sum())).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(norm)


def test_five_updates_equal_a_plain_loop(tmp_path: Path, vision_folder: Path) -> None:
    engine_spec = {"kind": "torch", "ranks": 1, "micro_batch_tokens": 160}
    optimizer = {"learning_rate": 1e-3, "epsilon": 1e-4}
    engine = make_engine(make_spec(trainer={"engine": engine_spec, "optimizer": optimizer}), tmp_path, vision_folder)
    model = load_causal_lm(str(vision_folder), "float32")
    plain = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.0)
    for iteration in range(1, 6):
        task = images_task(tmp_path, iteration)
        norm = plain_step(model, plain, vision_folder, tmp_path, batch_of(tmp_path, task))
        assert update(engine, task).metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    ours = weights_of(engine)
    start = load_causal_lm(str(vision_folder), "float32").state_dict()
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(ours[name], parameter.detach().numpy(), atol=2e-6, rtol=0, err_msg=name)
        assert UNUSED in name or not np.array_equal(ours[name], start[name].numpy()), name


def test_a_restored_trainer_continues_bit_for_bit(tmp_path: Path, vision_folder: Path) -> None:
    spec = make_spec(algorithm={"kl": {"where": "loss"}})
    undisturbed = make_engine(spec, tmp_path, vision_folder)
    update(undisturbed, images_task(tmp_path, 1))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    undisturbed.freeze_state()(checkpoint)
    expected = update(undisturbed, images_task(tmp_path, 2))
    restored = make_engine(spec, tmp_path, vision_folder)
    restored.restore(checkpoint, 1)
    found = update(restored, images_task(tmp_path, 2))
    assert (found.fingerprint, found.metrics) == (expected.fingerprint, expected.metrics)


def test_checkpoint_files_load_as_hugging_face_weights(tmp_path: Path, vision_folder: Path) -> None:
    engine = make_engine(make_spec(), tmp_path, vision_folder)
    update(engine, images_task(tmp_path, 1))
    engine.freeze_state()(tmp_path)
    LlavaConfig.from_pretrained(vision_folder).save_pretrained(tmp_path)
    (tmp_path / "weights" / ONLY_FILE).rename(tmp_path / "model.safetensors")
    model: Any = LlavaForConditionalGeneration.from_pretrained(tmp_path)
    kept = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    assert kept.keys() == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(parameter.detach().numpy(), kept[name])


def test_images_that_do_not_fit_their_placeholders_name_the_sample(tmp_path: Path, vision_folder: Path) -> None:
    rows = random_rows(1, prompts=2, samples=2, vocabulary=IMAGE_TOKEN)
    addresses = store_pictures(tmp_path / "inputs", 2)
    for row in rows:
        row["prompt_tokens"] = prompt_with(1, 3, 0).tolist()
        row["media"] = " ".join(addresses if row["prompt_ordinal"] else addresses[:1])
    batch = batch_of(tmp_path, write_shards(tmp_path, 1, rows))
    model = load_causal_lm(str(vision_folder), "float32")
    forward = PolicyForward(model, 1.0, "float32", ImageReader(str(vision_folder), tmp_path / "inputs"))
    with pytest.raises(DataError, match=r"sample 2 of the batch .*\b9 .*\b2 images need 9\b"):
        forward.log_probs(assemble(batch, np.arange(4)))
