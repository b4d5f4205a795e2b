"""A collector that draws responses with tool calls in slices: turns go on in later slices, and no answered call is made again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.collection.local import PROMPTS, digests, spec_with, tool
from tests.collection.test_joined_turns import QuickToolbox
from tests.collection.test_slices import SAMPLES, draw, going_on, ref_of, table_of
from yatt_core.experience import chunks, shard_log, turn_log
from yatt_core.experience.carried import load_carried
from yatt_core.experience.shard_log import read_learnt_facts
from yatt_core.experience.table import (
    FINISH_LENGTH,
    FINISH_STOP,
    FINISH_TOOL,
    FINISH_TURNS,
    STRETCH_TOKENS,
    STRETCH_VERSIONS,
)
from yatt_core.prompts.tool_calls import UNAVAILABLE, ToolAnswer, ToolCall
from yatt_core.protocols.receipts import ShardReceipt, SliceTask
from yatt_core.spec import RunSpec
from yatt_core.tools.toolbox import Toolbox

SLICE = 6
MOST = 24
"""Tokens of the policy in a response, at most."""


def made_with(**changes: Any) -> RunSpec:
    """Returns a spec whose turns are often longer than half a slice, and half of whose turns call a tool."""
    return spec_with(
        tool("count", "tests.tools.functions:counting", options={"file": "calls"}),
        **{"rollout__slice_tokens": SLICE, "rollout__max_new_tokens": MOST, "rollout__engine__sigma": 0.9, **changes},
    )


def drawn_to_the_end(folder: Path, toolbox: Toolbox, term: int = 1) -> list[ShardReceipt]:
    """Draws all prompts to their ends, a slice in each iteration."""
    made = made_with()
    going = {prompt: SliceTask(1, SLICE) for prompt in range(PROMPTS)}
    receipts: list[ShardReceipt] = []
    while going:
        prompts = sorted(going)
        slices = [going[n] for n in prompts]
        receipt, _ = draw(
            folder=folder,
            made=made,
            iteration=len(receipts) + 1,
            prompts=prompts,
            slices=slices,
            term=term,
            toolbox=toolbox,
        )
        receipts.append(receipt)
        going = going_on(receipt, prompts, SLICE)
    return receipts


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Counter[str], list[Mapping[str, Any]]]:
    """Returns digests, calls and rows."""
    folder = tmp_path_factory.mktemp("undisturbed")
    toolbox = QuickToolbox(made_with())
    receipts = drawn_to_the_end(folder, toolbox)
    assert len(receipts) > 2
    return digests(receipts), toolbox.made, table_of(folder, receipts).to_pylist()


def test_turns_go_on_in_later_slices_and_end_as_whole_ones_do(undisturbed: Any) -> None:
    _, calls, rows = undisturbed
    assert [(row["prompt_ordinal"], row["sample"]) for row in rows] == [
        (prompt, sample) for prompt in range(PROMPTS) for sample in range(SAMPLES)
    ]
    assert {row["turns"] for row in rows} == {1, 2, 3}
    assert calls.total() == sum(row["turns"] - 1 for row in rows), "each call was made once"
    assert {row["finish"] for row in rows} <= {FINISH_STOP, FINISH_TURNS, FINISH_LENGTH}
    across = 0
    for row in rows:
        mask = np.array(row["loss_mask"])
        assert len(mask) == len(row["response_tokens"]) == sum(row[STRETCH_TOKENS])
        assert np.count_nonzero(np.diff(mask.astype(int)) < 0) == row["turns"] - 1
        assert row["turns"] - 1 == row["response"].count("<tool_result>")
        assert not np.array(row["log_probs_sampler"])[~mask].any()
        told = "".join(part.partition("</tool_result>")[0] for part in row["response"].split("<tool_result>")[1:])
        assert bytes(np.array(row["response_tokens"])[~mask].tolist()).decode() == told
        assert sum(mask) <= MOST
        assert row[STRETCH_VERSIONS] == list(range(len(row[STRETCH_VERSIONS])))
        spoken = [int(part.sum()) for part in np.split(mask, np.cumsum(row[STRETCH_TOKENS])[:-1])]
        assert all(0 < each <= SLICE for each in spoken) and set(spoken[:-1]) <= {SLICE}
        across += len(spoken) > 1 and row["turns"] > 1
    assert across, "no response with a call went on under newer weights"


def test_a_call_is_answered_in_its_slice_and_the_next_turn_has_what_is_left_of_it(tmp_path: Path) -> None:
    made = made_with()
    slices = [SliceTask(1, SLICE)] * PROMPTS
    first, stream = draw(tmp_path, made, 1, range(PROMPTS), slices, toolbox=QuickToolbox(made))
    later = [request for request in stream.asked if request.seeds.shape[1] == 1]
    assert later and all(0 < limit < SLICE for request in later for limit in request.prompt_limits.tolist())
    seeds = np.concatenate([request.seeds.reshape(-1) for request in stream.asked])
    assert len(set(seeds.tolist())) == len(seeds), "each turn has noise of its own"
    rows = load_carried(tmp_path, ref_of(first)).to_pylist()
    assert any(json.loads(row["answers"]) for row in rows)
    for row in rows:
        assert sum(row["turns"]) + sum(row["answer_tokens"]) == len(row["tokens"]) == len(row["log_probs"])
        assert len(row["turns"]) - len(json.loads(row["answers"])) in (0, 1)
        assert row["finish"] or sum(row["turns"]) == SLICE


def test_a_turn_has_the_same_noise_in_all_of_its_slices(tmp_path: Path) -> None:
    made = made_with(rollout__engine__tool_call_fraction=0.0)
    receipt, before = draw(tmp_path, made, 1, range(PROMPTS), [SliceTask(1, 2)] * PROMPTS)
    going = going_on(receipt, range(PROMPTS), 2)
    _, after = draw(tmp_path, made, 2, sorted(going), [going[n] for n in sorted(going)])
    seeds = {seed for request in after.asked for seed in request.seeds.reshape(-1).tolist()}
    assert seeds <= {seed for request in before.asked for seed in request.seeds.reshape(-1).tolist()}
    assert {tokens for request in after.asked for tokens in np.array(request.drawn).tolist()} == {2}


def test_a_minimum_of_new_tokens_is_that_of_first_turns(tmp_path: Path) -> None:
    made = made_with(rollout__min_new_tokens=2)
    slices = [SliceTask(1, None)] * PROMPTS
    receipt, stream = draw(tmp_path, made, 1, range(PROMPTS), slices, toolbox=QuickToolbox(made))
    assert {request.min_new_tokens for request in stream.asked} == {0, 2}
    assert {row["turns"] for row in table_of(tmp_path, [receipt]).to_pylist()} > {1}


AWAY = f"{UNAVAILABLE}: nobody answers"


class Silent(QuickToolbox):
    """Gives no call an answer."""

    def _answer(self, call: ToolCall | ToolAnswer) -> ToolAnswer:
        return ToolAnswer("", AWAY)


def test_a_response_whose_tool_got_no_answer_ends_there_while_its_group_goes_on(tmp_path: Path) -> None:
    rows = table_of(tmp_path, drawn_to_the_end(tmp_path, Silent(made_with()))).to_pylist()
    ended = [row for row in rows if row["finish"] == FINISH_TOOL]
    assert ended and all(row["turns"] == 1 and row["tool_error"] == AWAY for row in ended)
    last = {
        prompt: max(max(row[STRETCH_VERSIONS]) for row in rows if row["prompt_ordinal"] == prompt)
        for prompt in range(PROMPTS)
    }
    assert any(last[row["prompt_ordinal"]] > max(row[STRETCH_VERSIONS]) for row in ended)


def test_tokens_by_version_are_those_of_the_policy(tmp_path: Path) -> None:
    receipts = drawn_to_the_end(tmp_path, QuickToolbox(made_with()))
    facts = {ordinal: one for receipt in receipts for ordinal, one in read_learnt_facts(tmp_path, receipt).items()}
    assert all(sum(one.tokens.values()) == one.sums["loss_tokens"] for one in facts.values())
    assert any(one.sums["loss_tokens"] < one.sums["response_tokens"] for one in facts.values())


class Killed(BaseException):
    """Stands for the death of the process."""


def test_killed_after_every_chunk_samples_are_equal_and_no_answered_call_is_repeated(
    tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt writes one chunk and dies before the next."""
    expected, calls, _ = undisturbed
    write = chunks.write_chunk
    answered: Counter[tuple[str, str]] = Counter()
    lived = False

    def killed_before(path: Path, table: pa.Table, labels: Mapping[str, str]) -> str:
        nonlocal lived
        if lived:
            raise Killed
        lived = True
        if ".call-" in path.name:
            answered[path.name, labels["turn"]] += 1
        return write(path, table, labels)

    for module in (turn_log, shard_log):
        monkeypatch.setattr(module, "write_chunk", killed_before)
    receipts: list[ShardReceipt] = []
    deaths = 0
    while not receipts:
        lived = False
        try:
            receipts = drawn_to_the_end(tmp_path, QuickToolbox(made_with(), deaths), term=deaths + 1)
        except Killed:
            deaths += 1
    assert deaths > calls.total()
    assert digests(receipts) == expected
    assert set(answered.values()) == {1} and len(answered) == calls.total()
