"""The codec: prompts through the chat template, answers with an end token, responses without their stop token."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.inputs.example_specs import SPELL, VIRTUAL, run_spec
from tests.prompts.questions import question
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.tokenizer import save_tokenizer, train_tokenizer
from yatt_core.prompts.codec import encode_privileged, open_codec
from yatt_core.prompts.prompt import Message, Prompt
from yatt_core.spec.sections.model import TokenizerSpec

PROMPTS = [f"Spell this word backward: {word}" for word in ("sun", "moon", "star", "gnu", "ape")]
TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"


def write_config(folder, **rest):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "max_position_embeddings": 64, **rest}))
    return folder


@pytest.fixture
def trained(tmp_path):
    folder = write_config(tmp_path / "trained", eos_token_id=1)
    save_tokenizer(train_tokenizer(TokenizerSpec(), PROMPTS, []), folder, 64)
    return folder


@pytest.fixture
def byte_pairs(tmp_path):
    """Writes a byte-level BPE tokenizer, as most published models have, with a chat template."""
    folder = write_config(tmp_path / "pairs", eos_token_id=0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(PROMPTS, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|endoftext|>")
    wrapped.chat_template = TURNS
    wrapped.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 0]}))
    return folder


def set_template(folder, template):
    path = folder / "chat_template.jinja"
    path.unlink() if template is None else path.write_text(template)
    return folder


def test_a_trained_tokenizer_end_to_end(trained):
    codec = open_codec(run_spec(SPELL), str(trained))
    tokens = codec.encode_prompt(question("Spell this word backward: Gnu"))
    assert tokens.dtype == np.int32 and tokens.tolist()[-1] == 2 and len(tokens) == 6
    answer = codec.encode_answer("Ung")
    assert answer.dtype == np.int32 and answer[-1] == 1 and codec.decode(answer) == "ung"
    assert codec.decode(answer[:-1]) == "ung"
    assert codec.decode([0, *answer[:1], 2, *answer[1:]]) == "ung"
    assert codec.stop_tokens == (1,) and len(codec.tokenizer) == 4 + 1 + len(set("".join(PROMPTS).lower()))


def test_a_typical_published_tokenizer(byte_pairs):
    codec = open_codec(run_spec(SPELL, data={"system_prompt": "Be brief."}), str(byte_pairs))
    tokens = codec.encode_prompt(question("Spell é"))
    assert codec.decode(tokens) == "Be brief.Spell é"
    assert tokens.tolist()[0] == 2 and tokens.tolist()[-1] == 4
    assert codec.encode_answer("nus")[-1] == 1 and codec.stop_tokens == (0, 1)


def test_without_a_tokenizer_json_the_class_is_looked_up(byte_pairs):
    fast = open_codec(run_spec(SPELL), str(byte_pairs)).encode_answer("Spell this sun")
    model = json.loads((byte_pairs / "tokenizer.json").read_text())["model"]
    (byte_pairs / "vocab.json").write_text(json.dumps(model["vocab"]))
    (byte_pairs / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]))
    (byte_pairs / "tokenizer.json").unlink()
    settings = json.loads((byte_pairs / "tokenizer_config.json").read_text())
    (byte_pairs / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "GPT2Tokenizer"}))
    assert open_codec(run_spec(SPELL), str(byte_pairs)).encode_answer("Spell this sun").tolist() == fast.tolist()


def test_stop_strings_are_single_tokens(byte_pairs):
    spec = run_spec(SPELL, rollout={"stop": ["!", "<|user|>"], "max_new_tokens": 6})
    codec = open_codec(spec, str(byte_pairs))
    exclamation = codec.encode_answer("!")[0]
    assert codec.stop_tokens == tuple(sorted([0, 1, 3, exclamation]))
    assert codec.decode([*codec.encode_answer("sun")[:-1], exclamation]) == "sun"
    assert codec.decode([exclamation, *codec.encode_answer("sun")]) == "!sun"
    with pytest.raises(ConfigurationError, match=r"rollout\.stop: '!\?' is not a single token .*'!', '\?'"):
        open_codec(run_spec(SPELL, rollout={"stop": ["!?"], "max_new_tokens": 6}), str(byte_pairs))


def test_a_stop_string_unknown_to_the_tokenizer(trained):
    with pytest.raises(ConfigurationError, match=r"rollout\.stop: '€' is not a single token .*<unk>"):
        open_codec(run_spec(SPELL, rollout={"stop": ["€"], "max_new_tokens": 6}), str(trained))


def test_without_a_chat_template_the_text_is_plain(byte_pairs):
    codec = open_codec(run_spec(SPELL), str(set_template(byte_pairs, None)))
    assert codec.encode_prompt(question("Spell")).tolist() == codec.encode_answer("Spell").tolist()[:-1]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
            "chat template .*system messages",
        ),
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}?",
            ": no system role",
        ),
    ],
)
def test_a_system_prompt_is_never_lost_silently(byte_pairs, template, message):
    spec = run_spec(SPELL, data={"system_prompt": "Be brief."})
    with pytest.raises(ConfigurationError, match=rf"data\.system_prompt: .*{message}"):
        open_codec(spec, str(set_template(byte_pairs, template)))


TOOLS = {"functions": [{"name": "calculator", "function": "calculator"}], "max_result_tokens": 12, "max_turns": 2}
WITH_TOOLS = "{% for t in tools or [] %}{{ t.function.name }}: {{ t.function.description }} {% endfor %}" + TURNS


def test_the_chat_template_frames_a_result_between_two_turns(byte_pairs):
    codec = open_codec(run_spec(SPELL, rollout={"max_new_tokens": 6, "tools": TOOLS}), str(byte_pairs))
    wrapped = PreTrainedTokenizerFast.from_pretrained(byte_pairs)
    tokens, shown = codec.encode_result("42")
    assert (wrapped.decode(tokens), shown) == ("<|tool|>42<|end|><|assistant|>", "42"), (
        "the policy ended its turn itself"
    )
    tokens, shown = codec.encode_result("1234567890" * 5)
    assert len(tokens) <= 12 and shown and "1234567890".startswith(shown), "a result that is too long is cut"
    assert wrapped.decode(tokens) == f"<|tool|>{shown}<|end|><|assistant|>"
    with pytest.raises(ConfigurationError, match=r"rollout\.tools: "):
        open_codec(run_spec(SPELL), str(byte_pairs)).encode_result("42")


def test_a_result_for_a_trained_tokenizer_and_for_one_without_a_template(trained, byte_pairs):
    spec = run_spec(SPELL, rollout={"max_new_tokens": 6, "tools": TOOLS})
    tokens, _ = open_codec(spec, str(trained)).encode_result("sun")
    assert PreTrainedTokenizerFast.from_pretrained(trained).decode(tokens) == "sun<sep>"
    roomy = run_spec(SPELL, rollout={"max_new_tokens": 6, "tools": {**TOOLS, "max_result_tokens": 40}})
    tokens, _ = open_codec(roomy, str(set_template(byte_pairs, None))).encode_result("sun")
    assert PreTrainedTokenizerFast.from_pretrained(byte_pairs).decode(tokens) == "\n<tool_result>sun</tool_result>\n"


@pytest.mark.parametrize(
    ("template", "change", "message"),
    [
        ("{{ raise_exception('no tools') }}", {}, r"rollout\.tools: .*chat template .*: no tools"),
        (
            "{{ messages[0]['content'] }}",
            {},
            r"rollout\.tools: .*chat template .*tool messages",
        ),
        (
            TURNS,
            {"max_result_tokens": 3},
            r"rollout\.tools\.max_result_tokens: 3 .*11 tokens .*at least 11",
        ),
    ],
)
def test_a_result_is_never_lost_silently(byte_pairs, template, change, message):
    spec = run_spec(SPELL, rollout={"max_new_tokens": 6, "tools": {**TOOLS, **change}})
    with pytest.raises(ConfigurationError, match=message):
        open_codec(spec, str(set_template(byte_pairs, template)))


def test_descriptions_of_tools_go_through_the_chat_template(byte_pairs):
    described = {**TOOLS, "functions": [{**TOOLS["functions"][0], "description": "adds"}]}
    spec = run_spec(SPELL, rollout={"max_new_tokens": 6, "tools": described})
    with pytest.raises(
        ConfigurationError, match=r"rollout\.tools\.functions 'calculator': .*chat template.*data\.system_prompt"
    ):
        open_codec(spec, str(byte_pairs))
    codec = open_codec(spec, str(set_template(byte_pairs, WITH_TOOLS)))
    shown = PreTrainedTokenizerFast.from_pretrained(byte_pairs).decode(codec.encode_prompt(question("hi")))
    assert shown == "calculator: adds <|user|>hi<|end|><|assistant|>"


def test_a_prompt_is_the_same_on_every_day(byte_pairs):
    codec = open_codec(
        run_spec(SPELL), str(set_template(byte_pairs, "{{ strftime_now('%d %b %Y') }}|{{ date_string }}"))
    )
    assert codec.decode(codec.encode_prompt(question("x"))) == "26 Jul 2024|26 Jul 2024"


def test_a_prompt_that_is_too_long_is_named(trained):
    codec = open_codec(run_spec(SPELL, data={"max_prompt_tokens": 5}), str(trained))
    with pytest.raises(
        DataError, match=r"prompt 0/train/a\.jsonl:7 has 6 tokens; at most 5 fit \(data\.max_prompt_tokens"
    ):
        codec.encode_prompt(question("Spell this word backward: gnu", "0/train/a.jsonl:7"))
    with pytest.raises(DataError, match=r"prompt 'Spell this word backward: gnu' .*6 tokens"):
        codec.encode_prompt(question("Spell this word backward: gnu"))


def test_a_prompt_leaves_room_for_the_response(trained):
    codec = open_codec(run_spec(SPELL, rollout={"max_new_tokens": 60}), str(trained))
    assert len(codec.encode_prompt(question("nus"))) == 4
    with pytest.raises(DataError, match="has 5 tokens; at most 4 fit"):
        codec.encode_prompt(question("moon"))
    with pytest.raises(ConfigurationError, match=r"rollout\.max_new_tokens: 64 leaves no room .* 64 positions"):
        open_codec(run_spec(SPELL, rollout={"max_new_tokens": 64}), str(trained))


def test_a_tokenizer_without_an_end_is_refused(trained):
    settings = json.loads((trained / "tokenizer_config.json").read_text())
    settings.pop("eos_token")
    (trained / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigurationError, match="has no end-of-sequence token"):
        open_codec(run_spec(SPELL), str(trained))


def test_a_virtual_run_needs_no_model_and_loads_none():
    script = (
        "import sys; from tests.inputs.example_specs import *; from yatt_core.prompts.codec import open_codec;"
        "from tests.prompts.questions import question;import "
        "yatt_core.inputs.reader, yatt_core.rewards.scoring;c = open_codec(run_spec(SPELL, **VIRTUAL), "
        "'');print(c.encode_prompt(question('ab')).tolist(), c.decode([12, 7, 93, 0]), c.decode([12, 7]), c.stop_tokens, "
        "c.encode_answer('a').tolist(), {'torch', 'transformers', 'reasoning_gym'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == "[97, 98] 12 7 93 12 7 (0,) [97, 0] set()"
    with pytest.raises(DataError, match="prompt p has 3 tokens; at most 2 fit"):
        open_codec(run_spec(SPELL, data={"max_prompt_tokens": 2}, **VIRTUAL), "").encode_prompt(question("abc", "p"))


def test_a_controllers_codec_loads_without_torch(trained):
    script = (
        "import sys; from tests.inputs.example_specs import *; from yatt_core.prompts.codec import open_codec;"
        f"open_codec(run_spec(SPELL), {str(trained)!r}); print('torch' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == "False"


CHAT = (Message("user", "Spell sun"), Message("assistant", "nus"), Message("user", "And gnu"))


def test_a_conversation_is_rendered_by_the_chat_template(byte_pairs):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(byte_pairs)
    brief = Message("system", "Be brief.")
    kind = Message("system", "Be kind.")
    for system_prompt, messages, expected in (
        (None, CHAT, CHAT),
        ("Be brief.", CHAT, (brief, *CHAT)),
        ("Be brief.", (kind, *CHAT), (kind, *CHAT)),
    ):
        codec = open_codec(run_spec(SPELL, data={"system_prompt": system_prompt}), str(byte_pairs))
        turns = [{"role": message.role, "content": message.content} for message in expected]
        rendered = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        tokens = codec.encode_prompt(question("transcript", messages=messages))
        assert (
            tokenizer.decode(tokens)
            == rendered
            == "".join([*(f"<|{message.role}|>{message.content}<|end|>" for message in expected), "<|assistant|>"])
        )


@pytest.mark.parametrize(
    ("template", "system", "says"),
    [
        (None, "", "chat template; .*has none"),
        ("{{ raise_exception('roles must alternate') }}", "", "rejected .*roles must alternate"),
        (TURNS.replace("%}<|{{", "if m.role != 'system' %}<|{{", 1), "Be kind.", "system message.*ignores"),
    ],
)
def test_a_conversation_that_a_model_cannot_take_is_named(byte_pairs, template, system, says):
    codec = open_codec(run_spec(SPELL), str(set_template(byte_pairs, template)))
    messages = (*([Message("system", system)] if system else []), *CHAT)
    with pytest.raises(DataError, match=rf"prompt 0/train/a:7 .*{says}"):
        codec.encode_prompt(question("transcript", "0/train/a:7", messages=messages))


def asked(answer="nus", messages=()):
    return Prompt(0, 0, "train/0/7", "Spell this word backward: sun", answer, {}, (), messages)


def test_a_prompt_for_the_policy_as_its_teacher_shows_the_answer(byte_pairs):
    codec = open_codec(run_spec(SPELL), str(byte_pairs))
    template = "{prompt}; {{hint}}: {answer}, {answer}"
    tokens = encode_privileged(asked(answer="{prompt}"), template, codec)
    expected = codec.encode_prompt(question("Spell this word backward: sun; {hint}: {prompt}, {prompt}"))
    assert tokens.tolist() == expected.tolist(), "values are not searched for placeholders"
    talk = (Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "sun?"))
    tokens = encode_privileged(asked(messages=talk), "{prompt} = {answer}", codec)
    told = codec.encode_prompt(question("", messages=(*talk[:2], Message("user", "sun? = nus"))))
    assert tokens.tolist() == told.tolist(), "only the last message changes"
    tools = ({"type": "function", "function": {"name": "spell", "parameters": {}}},)
    called = (Message("user", "sun?"), Message("tool", "s-u-n", name="spell", call_id="call-7"))
    set_template(byte_pairs, "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}"
        "{{ m.role }} {{ m.name }} {{ m.tool_call_id }} {{ m.content }} {% endfor %}")  # fmt: skip
    codec = open_codec(run_spec(SPELL), str(byte_pairs))
    prompt = replace(asked(messages=called), tools=tools)
    shown = codec.decode(encode_privileged(prompt, "{prompt} = {answer}", codec))
    assert "spell user" in shown and "tool spell call-7 s-u-n = nus" in shown, "the teacher sees what the policy sees"
    with pytest.raises(DataError, match=r"^prompt train/0/7: .*reference answer"):
        encode_privileged(asked(answer=None), template, codec)
