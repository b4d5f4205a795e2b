"""What is learnt of rows, token for token, beside TRL 1.16: for ten families of chat templates, with the masks.

TRL's trainers encode the same rows in the environment of the peers. The differences that docs/templates.md gives reasons for
are made in TRL's text, which shows what is learnt in brackets, and nothing else may differ.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.parity.families import FAMILIES, PEERS, make_folder, template_of
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.prompts.codec import generation_stops
from yatt_core.prompts.conversations import read_conversation, split_demonstration
from yatt_core.prompts.prompt import Message, Prompt
from yatt_core.prompts.prompt_codec import CodecSettings, PromptCodec

pytestmark = pytest.mark.verify
Row = dict[str, Any]
OPEN = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}"
CLOSE = "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"


def said(*texts: str) -> list[Row]:
    """Returns messages of a user and an assistant in turn."""
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]


THOUGHT = "<think>\ntwo and two\n</think>\n\n4"
ROWS: dict[str, list[Row]] = {
    "prompt_completion": [
        {"prompt": said("2 + 2?"), "completion": said("", "4")[1:]},
        {"prompt": said("Hi", "Hello", "And?"), "completion": said("", "Well, fine.")[1:]},
        {"prompt": said("2 + 2?"), "completion": said("", THOUGHT)[1:]},
    ],
    "messages": [
        {"messages": said("2 + 2?", "4")},
        {"messages": said("Hi", "Hello", "And you?", "Fine.\nYou?")},
        {"messages": said("2 + 2?", THOUGHT)},
    ],
    "preferences": [
        {"prompt": said("2 + 2?"), "chosen": said("", "4")[1:], "rejected": said("", "5, I think")[1:]},
        {"prompt": said("Hi", "Hello", "So?"), "chosen": said("", "So.")[1:], "rejected": said("", "No")[1:]},
    ],
    "unpaired": [{"prompt": said("2 + 2?"), "completion": said("", "4")[1:], "label": True}],
}
WRITTEN_BY_THE_PROMPT = {
    "qwen2_5": "\n",
    "qwen3_5_think": "<think>\n",
    "deepseekv3": "<｜Assistant｜>",
    "deepseek_r1_distill": "<｜Assistant｜>",
    "gptoss": "<|start|>assistant",
}
"""What TRL learns at the beginning of a turn in rows of messages, although the generation prompt writes it."""
BEHIND_THE_END = {"qwen2_5": "\n", "qwen3": "\n", "qwen3_5_think": "\n", "gemma3": "\n", "phi3": "\n"}
"""What TRL learns behind the token that ends a turn, although no engine samples it."""
AT_THE_END = {"phi3": "<|endoftext|>"}
"""What a template writes behind that at the end of a conversation."""
ENDED_BY_THE_NEXT = {"glm4moe": "<|user|>"}
"""What ends a turn, and TRL leaves out of rows of a prompt and a completion."""
THOUGHTS_DROPPED = {"deepseekv3", "deepseek_r1_distill"}
"""Templates that drop thoughts; TRL learns rows with thoughts without them, YATT with them."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if not (PEERS / "bin" / "python").exists():
        pytest.fail("the peers' environment is missing; `make verify` makes it, as does ops/bootstrap.py --peers")
    place = tmp_path_factory.mktemp("families")
    return {name: str(make_folder(place / name, family, template_of(name))) for name, family in FAMILIES.items()}


@pytest.fixture(scope="module")
def theirs(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("trl")
    request = place / "request.json"
    answer = place / "answer.json"
    request.write_text(json.dumps({"folders": folders, "rows": ROWS}))
    script = Path(__file__).parent / "peers" / "trl_rows.py"
    environment = {"HOME": str(place), "HF_HOME": str(place), "PATH": "/usr/bin:/bin"}
    subprocess.run([PEERS / "bin" / "python", script, request, answer], check=True, env=environment, timeout=600)
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def codec_of(folder: Path) -> PromptCodec:
    return PromptCodec(load_tokenizer(folder), CodecSettings(), 8192, generation_stops(folder, {}))


def encoded(codec: PromptCodec, before: Sequence[Message], reply: Sequence[Message]) -> tuple[list[int], list[bool]]:
    prompt = Prompt(0, 0, "p", before[-1].content, None, {}, messages=tuple(before))
    question = codec.encode_prompt(prompt).tolist()
    answer = codec.encode_reply(prompt, reply)
    kept = question[: len(question) - answer.missing]
    return kept + answer.tokens.tolist(), [False] * len(kept) + answer.learnt.tolist()


def ours(codec: PromptCodec, kind: str, row: Row) -> list[tuple[list[int], list[bool]]]:
    if kind == "messages":
        before, reply = split_demonstration(read_conversation(row["messages"]))
        return [encoded(codec, before, reply)]
    before = read_conversation(row["prompt"])
    keys = ("chosen", "rejected") if kind == "preferences" else ("completion",)
    return [encoded(codec, before, read_conversation(row[key])) for key in keys]


def shown(codec: PromptCodec, tokens: Sequence[int], learnt: Sequence[bool]) -> str:
    """Returns the text of tokens with what is learnt in brackets."""
    text = ""
    inside = False
    for token, counts in zip(tokens, learnt, strict=True):
        if counts != inside:
            text += OPEN if counts else CLOSE
            inside = counts
        text += codec.tokenizer.decode([token])
    return text + (CLOSE if inside else "")


def expected(name: str, kind: str, text: str) -> str:
    """Returns TRL's text with the differences that the docs give reasons for."""
    opening = WRITTEN_BY_THE_PROMPT.get(name)
    if kind == "messages" and opening is not None:
        text = text.replace(f"{OPEN}{opening}", f"{opening}{OPEN}")
    behind = BEHIND_THE_END.get(name, "")
    at_the_end = behind + AT_THE_END.get(name, "")
    if at_the_end and text.endswith(at_the_end + CLOSE):
        text = text.removesuffix(at_the_end + CLOSE) + CLOSE
    if behind:
        text = text.replace(f"{behind}{CLOSE}", f"{CLOSE}{behind}")
    if name in ENDED_BY_THE_NEXT and kind != "messages":
        text = text.removesuffix(CLOSE) + ENDED_BY_THE_NEXT[name] + CLOSE
    return text


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", ROWS)
def test_what_is_learnt_is_what_trl_learns(
    name: str, kind: str, folders: dict[str, str], theirs: dict[str, Any]
) -> None:
    codec = codec_of(Path(folders[name]))
    found = [shown(codec, *each) for row in ROWS[kind] for each in ours(codec, kind, row)]
    wanted = [expected(name, kind, shown(codec, each["tokens"], each["learnt"])) for each in theirs[name][kind]]
    thinking = {number for number, row in enumerate(ROWS[kind]) if THOUGHT in json.dumps(row).replace("\\n", "\n")}
    for number in thinking:
        if name in THOUGHTS_DROPPED:
            assert found[number].endswith(
                f"<｜Assistant｜><think>\n{OPEN}two and two\n</think>\n\n4<｜end▁of▁sentence｜>{CLOSE}"
            )
            wanted[number] = found[number]
        if name == "gptoss":  # TRL leaves the tags in the final channel
            channels = "<|channel|>analysis<|message|>two and two<|end|><|start|>assistant<|channel|>final<|message|>4"
            assert found[number].endswith(f"<|start|>assistant{OPEN}{channels}<|return|>{CLOSE}")
            wanted[number] = found[number]
    assert found == wanted


@pytest.mark.parametrize("name", FAMILIES)
def test_every_turn_of_a_conversation_is_learnt_with_its_thoughts(name: str, folders: dict[str, str]) -> None:
    texts = ("Hi", "<think>\nhm\n</think>\n\nHello", "And you?", "<think>\nwell\n</think>\n\nFine.")
    codec = codec_of(Path(folders[name]))
    ((tokens, learnt),) = ours(codec, "messages", {"messages": said(*texts)})
    text = shown(codec, tokens, learnt)
    pieces = [piece.partition(CLOSE)[0] for piece in text.split(OPEN)[1:]]
    assert len(pieces) == 2
    for piece, thought, final in zip(pieces, ("hm", "well"), ("Hello", "Fine."), strict=True):
        assert 0 <= piece.index(thought) < piece.index(final)
    assert "And you?" not in "".join(pieces)
