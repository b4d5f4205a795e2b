"""The placement of images in a prompt: before the text, or at `<image>` in it; a mismatch names the prompt."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.inputs.example_specs import run_spec
from tests.prompts.questions import question
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.tokenizer import IMAGE, IMAGE_ID, save_tokenizer, train_tokenizer
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.prompt import Message, Prompt
from yatt_core.spec.sections.model import TokenizerSpec

SOURCE = {"kind": "jsonl", "path": "pictures.jsonl", "image_field": "image"}
SPEC = run_spec(SOURCE, model={"kind": "folder", "path": "policy"})
PATCHES = 4
PROMPTS = [f"How many shapes? {word}" for word in ("a", "b", "c")]
PARTS = (
    "{% for m in messages %}USER: {% for c in m['content'] %}{% if c['type'] == 'image' %}<image>{% endif %}{% "
    "endfor %}{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor "
    "%}"
)


def write_config(folder, tower="siglip_vision_model", image_token=IMAGE_ID, **rest):
    vision = {"model_type": tower, "image_size": 16, "patch_size": 8}
    config = {"model_type": "llava", "image_token_index": image_token, "vision_config": vision, "eos_token_id": 1}
    text = {"model_type": "qwen2", "max_position_embeddings": 64}
    config |= {"text_config": text, "vision_feature_select_strategy": "full", **rest}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def trained(tmp_path):
    """Writes the folder of a model made from a config, with its own tokenizer and chat template."""
    save_tokenizer(train_tokenizer(TokenizerSpec(), PROMPTS, [], with_images=True), tmp_path, 64)
    return write_config(tmp_path)


@pytest.fixture
def published(tmp_path):
    """Writes a folder as models are published: its chat template expects images and texts as separate parts."""
    words = {token: i for i, token in enumerate(["<unk>", "<eos>", "<image>", "USER", ":", "How", "many", "?"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", extra_special_tokens=["<image>"])
    wrapped.chat_template = PARTS
    wrapped.save_pretrained(tmp_path)
    return write_config(tmp_path, image_token=2)


def places(tokens, token=IMAGE_ID):
    return np.flatnonzero(tokens == token).tolist()


def test_images_come_before_a_text_that_does_not_place_them(trained):
    codec = open_codec(SPEC, str(trained))
    plain, one, two = (codec.encode_prompt(question(PROMPTS[0], images=images)) for images in (0, 1, 2))
    assert one.tolist() == [IMAGE_ID] * PATCHES + plain.tolist()
    assert two.tolist() == [IMAGE_ID] * 2 * PATCHES + plain.tolist()
    assert plain[-1] == 2, "the separator comes after them"


def test_images_are_placed_where_the_text_says(trained):
    codec = open_codec(SPEC, str(trained))
    tokens = codec.encode_prompt(question(f"a{IMAGE}b{IMAGE}c", images=2))
    assert places(tokens) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert len(tokens) == 3 + 2 * PATCHES + 1


def test_phrases_are_found_despite_images_among_them():
    plain = train_tokenizer(TokenizerSpec(), PROMPTS, [], with_images=True)
    marked = train_tokenizer(TokenizerSpec(), [IMAGE + prompt for prompt in PROMPTS], [], with_images=True)
    assert marked.get_vocab() == plain.get_vocab()
    assert plain.token_to_id(IMAGE) == IMAGE_ID
    assert train_tokenizer(TokenizerSpec(), PROMPTS, []).token_to_id(IMAGE) is None


@pytest.mark.parametrize("images", [0, 2])
def test_a_mismatch_of_marks_and_images_names_the_prompt(trained, images):
    with pytest.raises(DataError, match=rf"prompt 0/train/a:7 .*{images} images.*<image> 1 times"):
        open_codec(SPEC, str(trained)).encode_prompt(question(f"{IMAGE} How many?", "0/train/a:7", images))


@pytest.mark.parametrize("template", [None, "{% for m in messages %}USER:{{ m.content }}{% endfor %}"])
def test_a_model_may_call_its_placeholder_something_else(published, template):
    path = published / "tokenizer.json"
    path.write_text(path.read_text().replace("<image>", "<pic>"))
    path = published / "chat_template.jinja"
    path.unlink() if template is None else path.write_text(template)
    codec = open_codec(SPEC, str(published))
    assert places(codec.encode_prompt(question("How <image> many?", images=1)), token=2)[0] == (
        1 if template is None else 3
    )
    assert len(places(codec.encode_prompt(question("How many?", images=2)), token=2)) == 2 * PATCHES
    with pytest.raises(DataError, match=r"prompt p has 8 .*1 images need 4"):
        codec.encode_prompt(question("How <pic> many?", "p", images=1))


def test_a_template_that_expects_separate_images_and_texts_gets_them(published):
    codec = open_codec(SPEC, str(published))
    tokens = codec.encode_prompt(question("How many?", images=2))
    assert tokens.tolist() == [3, 4, *[2] * 2 * PATCHES, 5, 6, 7]
    assert codec.encode_prompt(question("How many?")).tolist() == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("images", [0, 1])
def test_a_reply_in_such_a_template_is_learnt_with_its_text(published, images):
    codec = open_codec(SPEC, str(published))
    reply = [Message("assistant", "many many"), Message("user", "How?"), Message("assistant", "?")]
    prompt = Prompt(0, 0, "p", "How many?", None, {}, media=("picture",) * images)
    encoded = codec.encode_reply(prompt, reply)
    assert encoded.tokens[encoded.learnt].tolist() == [3, 4, 6, 6, 1, 3, 4, 7, 1]


def test_a_template_that_rejects_plain_text_gets_parts(published):
    (published / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['content'][0]['text'] + ' ' }}{% endfor %}"
    )
    assert open_codec(SPEC, str(published)).encode_prompt(question("How many?")).tolist() == [5, 6, 7]


SYSTEM_AND_TOOLS = "{% if messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}" + (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    + PARTS.replace("{% for m in messages %}", "{% for m in messages if m.role == 'user' %}")
)


def test_a_prompt_with_images_has_the_system_message_and_the_tools_that_one_without_has(published):
    (published / "chat_template.jinja").write_text(SYSTEM_AND_TOOLS)
    spec = run_spec(
        SOURCE, model={"kind": "folder", "path": "policy"}, data={"system_prompt": "How <eos>", "max_prompt_tokens": 64}
    )
    codec = open_codec(spec, str(published))
    tools = [{"type": "function", "function": {"name": "many", "parameters": {}}}]
    pictured = codec.encode_prompt(question("?", images=1, tools=tools))
    # The spec's own system message may name special tokens, the text of a row may not.
    assert pictured.tolist() == [5, 1, 6, 3, 4, *[2] * PATCHES, 7]
    assert codec.encode_prompt(question("?", tools=tools)).tolist() == [5, 1, 6, 3, 4, 7]
    assert 1 not in codec.encode_prompt(question("<eos> ?", images=1)).tolist()[2:]


@pytest.mark.parametrize(
    ("tower", "strategy", "expected"),
    [
        ("siglip_vision_model", "full", 4),
        ("clip_vision_model", "default", 4),
        ("clip_vision_model", "full", 5),
    ],
)
def test_an_image_has_as_many_placeholders_as_the_tower_gives_patches(trained, tower, strategy, expected):
    write_config(trained, tower, vision_feature_select_strategy=strategy)
    assert len(places(open_codec(SPEC, str(trained)).encode_prompt(question("a", images=1)))) == expected


def test_sizes_that_a_config_leaves_out_are_the_defaults_of_its_kind(trained):
    write_config(trained, vision_config={"model_type": "clip_vision_model"}, vision_feature_select_strategy="default")
    spec = run_spec(SOURCE, model={"kind": "folder", "path": "policy"}, data={"max_prompt_tokens": 5})
    with pytest.raises(DataError, match="has 51 tokens, 49 for 1 images; at most 5 fit"):
        open_codec(spec, str(trained)).encode_prompt(question("a", images=1))


def test_a_prompt_with_its_images_has_to_fit_the_text_model(trained):
    with pytest.raises(DataError, match="prompt p has 62 tokens, 60 for 15 images; at most 58 fit"):
        open_codec(SPEC, str(trained)).encode_prompt(question("a", "p", images=15))


def test_another_family_is_refused(trained):
    write_config(trained, model_type="qwen2_vl")
    with pytest.raises(ConfigurationError, match=r"qwen2_vl with siglip_vision_model .*expected llava"):
        open_codec(SPEC, str(trained))
    write_config(trained, tower="pixtral")
    with pytest.raises(ConfigurationError, match="llava with pixtral"):
        open_codec(SPEC, str(trained))


def test_a_text_only_model_refuses_a_prompt_with_images(tmp_path):
    save_tokenizer(train_tokenizer(TokenizerSpec(), PROMPTS, []), tmp_path, 64)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "eos_token_id": 1}))
    with pytest.raises(DataError, match=r"prompt p .*1 images"):
        open_codec(SPEC, str(tmp_path)).encode_prompt(question("a", "p", images=1))
