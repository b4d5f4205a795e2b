"""Models that reward images: what they compute, bits that depend on an image alone, what is refused, and runs with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import interpolate

from benchmarks.workloads.alone import begun
from tests.needs import NEEDS_DIFFUSERS
from tests.workloads.diffusion.clip_folders import (
    DEVIATION,
    END,
    MEAN,
    write_clip,
    write_head,
    write_tower,
)
from tests.workloads.in_process import OwnRun
from yatt_core.digests import path_digest
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.inputs.identity import identity
from yatt_core.models.loading import quiet_transformers
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.spec import load_spec
from yatt_core.workloads.contract import Draw, RunFacts
from yatt_core.workloads.diffusion.clip import ROWS, UNNAMED_END
from yatt_core.workloads.diffusion.drawing import ShapeDrawing
from yatt_core.workloads.diffusion.scorers import (
    HEAD,
    AestheticReward,
    AestheticScorer,
    ClipReward,
    ClipScorer,
    check_scorer,
    keep_scorer,
    kept_scorer,
    read_head,
)
from yatt_core.workloads.diffusion.shapes import PROMPTS

pytestmark = NEEDS_DIFFUSERS
SPEC = Path(__file__).parent / "drawing.yaml"
PIXELS = torch.randint(0, 256, (len(PROMPTS), 20, 30, 3), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
RULED = "workload.kind=yatt_core.workloads.diffusion.drawing:ShapeDrawing"
CLIP = AestheticReward(kind="aesthetic", model="clip")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@torch.no_grad()
def vectors(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    """Returns the unit vectors of images by transformers' own methods."""
    model = quiet_transformers().CLIPModel.from_pretrained(folder)
    least = min(pixels.shape[1:3])
    top, left = ((side - least) // 2 for side in pixels.shape[1:3])
    square = pixels[:, top : top + least, left : left + least].permute(0, 3, 1, 2).float() / 255
    square = interpolate(square, (16, 16), mode="bicubic", antialias=True).clamp(0, 1)
    mean, deviation = (torch.tensor(each)[:, None, None] for each in (MEAN, DEVIATION))
    found = model.get_image_features(pixel_values=(square - mean) / deviation).pooler_output
    return found / found.norm(dim=1, keepdim=True)


@torch.no_grad()
def test_a_clip_reward_is_the_similarity_of_image_and_prompt(tmp_path: Path) -> None:
    folder = write_clip(tmp_path / "clip")
    found = ClipScorer(folder)(PIXELS, PROMPTS)
    model = quiet_transformers().CLIPModel.from_pretrained(folder)
    inputs = load_tokenizer(folder)(list(PROMPTS), padding=True, return_tensors="pt")
    texts = model.get_text_features(inputs.input_ids, inputs.attention_mask).pooler_output
    wanted = (vectors(folder, PIXELS) * texts / texts.norm(dim=1, keepdim=True)).sum(1)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert found.std() > 1e-3 and found.dtype == torch.float32
    others = ClipScorer(folder)(PIXELS, PROMPTS[::-1])
    assert not torch.equal(others, found), "it depends on the prompt"


@torch.no_grad()
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_an_aesthetic_reward_is_a_head_on_an_images_unit_vector(activation: str, tmp_path: Path) -> None:
    folder = write_clip(tmp_path / "clip")
    head = write_head(folder, 12, 5, 1)
    settings = AestheticReward.model_validate({"kind": "aesthetic", "model": "clip", "activation": activation})
    found = AestheticScorer(folder, folder / HEAD, settings)(PIXELS, PROMPTS)
    hidden = vectors(folder, PIXELS) @ head["layers.0.weight"].T + head["layers.0.bias"]
    hidden = hidden.relu() if activation == "relu" else hidden
    wanted = (hidden @ head["layers.2.weight"].T + head["layers.2.bias"])[:, 0]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_vision_tower_alone_is_enough_for_an_aesthetic_reward_and_not_for_a_clip_reward(tmp_path: Path) -> None:
    folder = write_tower(tmp_path / "tower")
    write_head(folder, 12, 1)
    assert AestheticScorer(folder, folder / HEAD, CLIP)(PIXELS, PROMPTS).shape == (len(PROMPTS),)
    with pytest.raises(ConfigurationError, match="is a vision tower alone; expected a CLIPModel"):
        ClipScorer(folder)


def test_a_score_has_the_same_bits_in_every_batch(tmp_path: Path) -> None:
    folder = write_clip(tmp_path / "clip")
    write_head(folder, 12, 5, 1)
    for scorer in (ClipScorer(folder), AestheticScorer(folder, folder / HEAD, CLIP)):
        whole = scorer(PIXELS, PROMPTS)
        for rows in (1, 3, ROWS):
            parts = [slice(first, first + rows) for first in range(0, len(PROMPTS), rows)]
            split = torch.cat([scorer(PIXELS[part], PROMPTS[part]) for part in parts])
            assert torch.equal(split, whole), f"in batches of {rows}"
        order = torch.randperm(len(PROMPTS), generator=torch.Generator().manual_seed(1))
        assert torch.equal(scorer(PIXELS[order], [PROMPTS[row] for row in order]), whole[order])


def without(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()

    return change


def with_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    (folder / HEAD).unlink()


def of_another_family(folder: Path) -> None:
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | {"model_type": "siglip"}))


def with_two_means(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5, 0.5], "image_std": DEVIATION}))


def with_a_head_of_another_width(folder: Path) -> None:
    write_head(folder, 11, 1)


def with_a_head_of_two_outputs(folder: Path) -> None:
    write_head(folder, 12, 2)


def with_layers_that_do_not_meet(folder: Path) -> None:
    save_file({"0.weight": torch.ones(3, 12), "0.bias": torch.ones(3), "1.weight": torch.ones(1, 4)}, folder / HEAD)


def without_a_bias(folder: Path) -> None:
    save_file({"weight": torch.ones(1, 12)}, folder / HEAD)


def with_a_tensor_of_no_layer(folder: Path) -> None:
    save_file({"norm.scale": torch.ones(1, 12)}, folder / HEAD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("config.json"), "has no config.json"),
        (without("preprocessor_config.json"), "preprocessor_config.json cannot be read: No such file"),
        (without(HEAD), "head.safetensors cannot be read: No such file"),
        (without("model.safetensors"), "cannot be loaded as a CLIP model"),
        (with_a_pickle, "other weight formats can run code"),
        (of_another_family, r"model_type: expected clip or clip_vision_model \(given: 'siglip'\)"),
        (with_two_means, r"image_mean: expected three numbers"),
        (with_a_head_of_another_width, "takes vectors of 11 numbers; the model has 12"),
        (with_a_head_of_two_outputs, "its last layer has 2 outputs; expected 1"),
        (with_layers_that_do_not_meet, r"layer 1: expected a weight \[outputs, 3\]"),
        (without_a_bias, r"layer 0: expected a bias \[1\]"),
        (with_a_tensor_of_no_layer, "norm.scale: expected linear layers alone"),
    ],
)
def test_a_folder_that_lacks_a_part_is_refused(change: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    folder = write_clip(tmp_path / "clip")
    write_head(folder, 12, 5, 1)
    change(folder)
    with pytest.raises(ConfigurationError, match=message):
        AestheticScorer(folder, folder / HEAD, CLIP)(PIXELS, PROMPTS)


def test_a_head_of_one_unnumbered_layer_is_read(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(1, 12), "bias": torch.zeros(1)}, tmp_path / HEAD)
    (layer,) = read_head(tmp_path / HEAD)
    assert layer.weight.shape == (1, 12)


def test_a_head_can_have_a_folder_of_its_own(tmp_path: Path) -> None:
    models = {"tower": write_tower(tmp_path / "tower"), "head": tmp_path / "predictor"}
    models["head"].mkdir()
    reward = AestheticReward(kind="aesthetic", model="tower", head="head")
    with pytest.raises(ConfigurationError, match="predictor: has 0 safetensors files; expected one, the head"):
        check_scorer(reward, models, PROMPTS)
    write_head(models["head"], 12, 1)
    (models["head"] / HEAD).rename(models["head"] / "linear.safetensors")
    (tmp_path / "inputs").mkdir()
    keep_scorer(reward, models, PROMPTS, tmp_path / "inputs")
    kept = kept_scorer(reward, tmp_path / "inputs")
    assert kept is not None and kept.score(PIXELS, PROMPTS).shape == (len(PROMPTS),)
    assert kept.facts == {"kind": "aesthetic", "sha256": path_digest(tmp_path / "inputs" / "scorer")}


def test_prompts_that_the_model_cannot_read_are_refused(tmp_path: Path) -> None:
    scorer = ClipScorer(write_clip(tmp_path / "clip"))
    with pytest.raises(DataError, match=r"has 7 tokens; the CLIP model knows at most 6"):
        scorer(PIXELS[:1], ["red red red red red"])
    endless = ClipScorer(write_clip(tmp_path / "endless", ends=False))
    with pytest.raises(ConfigurationError, match="its tokenizer adds no token for the end of a text"):
        endless(PIXELS[:1], ["red circle"])


def test_what_the_first_scores_would_find_is_found_when_inputs_are_checked(tmp_path: Path) -> None:
    reward = ClipReward(kind="clip", model="clip")
    models = {"clip": write_clip(tmp_path / "clip")}
    check_scorer(reward, models, PROMPTS)
    with pytest.raises(DataError, match=r"has 7 tokens; the CLIP model knows at most 6"):
        check_scorer(reward, models, [*PROMPTS, "red red red red red"])
    with pytest.raises(ConfigurationError, match="its tokenizer adds no token for the end of a text"):
        check_scorer(reward, {"clip": write_clip(tmp_path / "endless", ends=False)}, PROMPTS)
    write_head(models["clip"], 11, 1)
    with pytest.raises(ConfigurationError, match="takes vectors of 11 numbers; the model has 12"):
        check_scorer(CLIP, models, PROMPTS)
    settings = {"reward": {"kind": "aesthetic", "model": "clip"}}
    with pytest.raises(ConfigurationError, match="takes vectors of 11 numbers"):
        ShapeDrawing(RunFacts(seed=0, settings=settings, iterations=1, models=models)).check_inputs()


def test_a_text_ends_for_the_model_where_the_tokenizer_ends_it(tmp_path: Path) -> None:
    """Otherwise transformers takes the vector of a text's first token, which is the same for all."""
    named = ClipScorer(write_clip(tmp_path / "named"))
    unnamed = ClipScorer(write_clip(tmp_path / "unnamed", stated_end=UNNAMED_END))
    scores = named(PIXELS, PROMPTS)
    assert torch.equal(unnamed(PIXELS, PROMPTS), scores), "the greatest token is the end"
    reward = ClipReward(kind="clip", model="clip")
    other = write_clip(tmp_path / "other", stated_end=3)
    with pytest.raises(ConfigurationError, match=rf"eos_token_id: expected {END}, the token .*, or 2 \(given: 3\)"):
        check_scorer(reward, {"clip": other}, PROMPTS)
    write_head(other, 12, 1)
    check_scorer(CLIP, {"clip": other}, PROMPTS)  # reads no texts
    for end, place in ((UNNAMED_END, "unnamed-first"), (END, "other-first")):
        folder = write_clip(tmp_path / place, stated_end=end, end_is_greatest=False)
        with pytest.raises(ConfigurationError, match=r"greatest token|eos_token_id: expected 2"):
            check_scorer(reward, {"clip": folder}, PROMPTS)


def test_a_rank_without_images_asks_nobody_for_rewards(tmp_path: Path) -> None:
    workload = begun(ShapeDrawing, tmp_path / "inputs", seed=5, iterations=1, **load_spec(SPEC).workload.settings)
    draw = Draw(seed=5, iteration=1, number=0)
    none = {name: column[:0] for name, column in workload.draw(draw).items()}
    with mock.patch.object(ShapeDrawing, "rewards", side_effect=AssertionError):
        found = workload.sample_shard(none, draw)
    assert found["reward"].shape == (0,) and found["reward"].dtype == np.float32


@pytest.mark.parametrize("second", ["heads.0.weight", "weight"])
def test_a_head_with_two_tensors_for_one_layer_is_refused(tmp_path: Path, second: str) -> None:
    """One of them would silently take the place of the other."""
    tensors = {"0.weight": torch.zeros(1, 3), "0.bias": torch.zeros(1), second: torch.ones(1, 3)}
    save_file(tensors, tmp_path / "head.safetensors")
    with pytest.raises(
        ConfigurationError, match=r"head.safetensors: .* and .* are both the weight of layer 0; expected one"
    ) as told:
        read_head(tmp_path / "head.safetensors")
    assert "0.weight" in str(told.value) and second in str(told.value)


def test_a_model_that_the_spec_does_not_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"reward: workload.models has no 'clip'; it has other"):
        check_scorer(ClipReward(kind="clip", model="clip"), {"other": tmp_path}, PROMPTS)
    facts = RunFacts(seed=0, settings={"reward": {"kind": "clip", "model": "clip"}}, iterations=1)
    with pytest.raises(ConfigurationError, match=r"it has none"):
        ShapeDrawing(facts).check_inputs()
    with pytest.raises(ConfigurationError, match=r"workload.tunable.reward: the inputs depend on it"):
        ShapeDrawing(RunFacts(seed=0, settings={}, iterations=1, tunable=frozenset({"reward"})))


def rewarded(kind: str, folder: Path) -> list[str]:
    reward = f"workload.settings.reward={{kind: {kind}, model: judge}}"
    return [RULED, reward, f"workload.models={{judge: {{kind: folder, path: {folder}}}}}"]


@pytest.mark.parametrize("kind", ["clip", pytest.param("aesthetic", marks=pytest.mark.verify)])
def test_a_run_rewarded_by_a_model_keeps_its_files_and_ends_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    folder = write_clip(tmp_path / "judge")
    write_head(folder, 12, 5, 1)
    own = rewarded(kind, folder)
    undisturbed = OwnRun.of(tmp_path / "undisturbed", SPEC, *own)
    undisturbed.drive()
    struck = OwnRun.of(tmp_path / "struck", SPEC, *own, "trainer.engine.ranks=4")  # of which one has no batch
    assert struck.drive("after prepare:1") is None
    digest = path_digest(struck.folder / "inputs" / "scorer")
    for path in folder.iterdir():
        path.unlink()  # the run has its own copy
    for number, place in enumerate(("after learn:2", "after checkpoint:2")):
        assert struck.drive(place, cold=number % 2 == 0) is None
    struck.drive(cold=True)
    assert struck.results().weights_digest == undisturbed.results().weights_digest is not None
    assert struck.results().metrics_digest == undisturbed.results().metrics_digest
    with struck.ledger() as ledger:
        rewards = [value for _, value in ledger.metrics.history(struck.run, "reward")]
        held_out = ledger.metrics.history(struck.run, "evaluation/reward")
        checkpoint = ledger.records.checkpoints(struck.run)[0]
    assert len(set(rewards)) == 3 and held_out
    stated = json.loads((struck.folder / checkpoint.folder / "workload.json").read_text())
    assert stated["facts"] == {"scorer": {"kind": kind, "sha256": digest}}


def test_models_of_a_workload_are_part_of_what_its_inputs_depend_on(tmp_path: Path) -> None:
    plain = load_spec(SPEC)
    assert "models" not in plain.model_dump(mode="json")["workload"], "specs without models keep their digest"
    named = [load_spec(SPEC, rewarded("clip", tmp_path / name)) for name in ("one", "other")]
    assert identity(named[0]) != identity(named[1])
    with pytest.raises(ConfigurationError, match="models: only a workload of your own has models"):
        load_spec(SPEC, ["workload={kind: language, models: {judge: {kind: folder, path: x}}}"])


def test_a_scorer_that_cannot_be_made_is_an_error_before_a_run_is_created(tmp_path: Path) -> None:
    found: Any = load_spec(SPEC, rewarded("clip", tmp_path / "none"))
    facts = RunFacts(
        seed=0,
        settings=found.workload.settings,
        iterations=1,
        models={name: Path(model.path) for name, model in found.workload.models.items()},
    )
    with pytest.raises(ConfigurationError, match="none"):
        ShapeDrawing(facts).check_inputs()
