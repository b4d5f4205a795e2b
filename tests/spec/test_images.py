"""Images in a spec: a vision tower whose sizes divide, and a model that can see the images in the data."""

import pytest

from tests.inputs.example_specs import SPELL, VIRTUAL, run_spec

PICTURES = {"kind": "jsonl", "path": "p.jsonl", "image_field": "image"}
TOWER = {"image_size": 16, "patch_size": 8, "hidden_size": 8, "heads": 2}


def model(**vision):
    return {"kind": "from_config", "vision": {**TOWER, **vision}}


def test_a_run_has_images_when_one_of_its_sources_has():
    assert run_spec(SPELL, PICTURES, model=model()).data.has_images
    assert not run_spec(SPELL, model=model()).data.has_images


def test_images_need_a_model_with_a_vision_tower():
    with pytest.raises(ValueError, match=r"model\.vision: .*data\.sources.*image_field"):
        run_spec(PICTURES)
    assert run_spec(PICTURES, **VIRTUAL).data.has_images
    assert run_spec(PICTURES, model={"kind": "folder", "path": "policy"}).data.has_images


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"patch_size": 5}, "image_size 16 .*patch_size 5"), ({"heads": 3}, "hidden_size 8 .*heads 3")],
)
def test_sizes_that_do_not_divide_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        run_spec(PICTURES, model=model(**wrong))


@pytest.mark.parametrize(
    ("data", "positions", "says"),
    [
        ({"max_prompt_tokens": 16}, 64, "16 tokens, .* room for 16,"),
        ({}, 22, r"room for 16, .*data\.max_prompt_tokens 1024; model\.max_positions 22 .*6 for the response"),
    ],
)
def test_an_image_has_to_leave_room_for_the_text(data, positions, says):
    wide = {**model(image_size=32), "max_positions": positions}
    with pytest.raises(ValueError, match=rf"model\.vision\.image_size: an image of 32 pixels .*{says}"):
        run_spec(PICTURES, data=data, model=wide)
    assert run_spec(PICTURES, data={"max_prompt_tokens": 17}, model={**wide, "max_positions": 23}).data.has_images
    assert run_spec(SPELL, data=data, model=wide).model.vision.patches == 16
