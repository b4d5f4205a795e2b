"""A collector that draws responses in slices: it goes on from what is sealed, and scores groups once they are complete."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.collection.local import PROMPTS, FewPrompts, LocalStream, digests, spec_with
from tests.collection.test_judging import JUDGE
from yatt_core.collection.collector import Collector
from yatt_core.errors import DataError
from yatt_core.experience.batch import SAMPLES_FILE, load_table
from yatt_core.experience.carried import CARRIED_FILE, load_carried
from yatt_core.experience.shard_log import JUDGEMENTS_FILE, ShardLog, read_learnt_facts, read_shard_work
from yatt_core.experience.table import FINISH_LENGTH, FINISH_STOP, STRETCH_TOKENS, STRETCH_VERSIONS
from yatt_core.keys import WorkKey
from yatt_core.prompts.codec import open_codec
from yatt_core.protocols.judges import JudgeItem, Judgement, Verdict
from yatt_core.protocols.receipts import PromptRef, ShardPlace, ShardReceipt, ShardRef, ShardTask, SliceTask
from yatt_core.rewards.scoring import RewardScorer
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import Check, NoStore, RunStore
from yatt_core.tools.toolbox import Toolbox

SLICE = 5
SAMPLES = 2


def sliced_spec(**changes: Any) -> RunSpec:
    settings = {
        "rollout__slice_tokens": SLICE,
        "rollout__engine__median_tokens": 6.0,
        "rollout__engine__sigma": 0.9,
        "rollout__engine__tool_call_fraction": 0.0,
        **changes,
    }
    return spec_with(**settings)


def stream_at(made: RunSpec, version: int) -> LocalStream:
    stream = LocalStream(made)
    stream._engine.update_weights({"state": np.full(4, version, np.uint8)}, version)
    return stream


def draw(
    folder: Path,
    made: RunSpec,
    iteration: int,
    prompts: Sequence[int],
    slices: Sequence[SliceTask],
    term: int = 1,
    store: RunStore | None = None,
    toolbox: Toolbox | None = None,
) -> tuple[ShardReceipt, LocalStream]:
    """Seals the one shard of a round under the weights before the iteration."""
    stream = stream_at(made, iteration - 1)
    task = ShardTask(
        key=WorkKey("run", 0, iteration, "collect"),
        term=term,
        prompts=tuple(PromptRef(n, 0, n) for n in prompts),
        weight_version=iteration - 1,
        slices=tuple(slices),
    )
    with closing(toolbox or Toolbox(None)) as opened:
        scorer = RewardScorer(made.rewards)
        codec = open_codec(made, "")
        collector = Collector(
            spec=made,
            run_folder=folder,
            inputs=FewPrompts(),
            codec=codec,
            scorer=scorer,
            toolbox=opened,
            store=store or NoStore(),
        )
        (receipt,) = collector.collect([task], stream)
    return receipt, stream


def going_on(receipt: ShardReceipt, prompts: Sequence[int], tokens: int | None = SLICE) -> dict[int, SliceTask]:
    """Returns how the prompts of a shard that are not complete go on from it."""
    facts = receipt.slices
    assert facts is not None
    ref = ShardRef(receipt.folder, receipt.manifest_sha256)
    place = ShardPlace(receipt.key.iteration, 0, 0)
    return {
        prompt: SliceTask(1, tokens, place, ref)
        for prompt, completed in zip(prompts, facts.completed, strict=True)
        if not completed
    }


def drawn_in_slices(folder: Path, made: RunSpec, term: int = 1) -> list[ShardReceipt]:
    """Draws all prompts to their ends, a slice in each iteration."""
    going = {prompt: SliceTask(1, SLICE) for prompt in range(PROMPTS)}
    receipts = []
    iteration = 0
    while going:
        iteration += 1
        receipt, _ = draw(folder, made, iteration, sorted(going), [going[n] for n in sorted(going)], term)
        receipts.append(receipt)
        going = going_on(receipt, sorted(going))
    return receipts


def ref_of(receipt: ShardReceipt) -> ShardRef:
    return ShardRef(receipt.folder, receipt.manifest_sha256)


def table_of(folder: Path, receipts: Sequence[ShardReceipt]) -> pa.Table:
    return load_table(folder, [ref_of(receipt) for receipt in receipts if receipt.samples])


def test_responses_go_on_from_what_is_sealed_until_their_groups_are_complete(tmp_path: Path) -> None:
    made = sliced_spec()
    receipts = drawn_in_slices(tmp_path, made)
    assert len(receipts) > 2
    rows = table_of(tmp_path, receipts).to_pylist()
    assert [(row["prompt_ordinal"], row["sample"]) for row in rows] == [
        (prompt, sample) for prompt in range(PROMPTS) for sample in range(SAMPLES)
    ]
    for row in rows:
        tokens = row[STRETCH_TOKENS]
        assert sum(tokens) == len(row["response_tokens"]) == len(row["log_probs_sampler"]) == len(row["loss_mask"])
        assert all(0 < count <= SLICE for count in tokens) and set(tokens[:-1]) <= {SLICE}
        assert row[STRETCH_VERSIONS] == list(range(len(tokens)))
        assert row["weight_version"] == 0
        assert row["finish"] == (FINISH_LENGTH if row["truncated"] else FINISH_STOP)
    facts = {ordinal: one for receipt in receipts for ordinal, one in read_learnt_facts(tmp_path, receipt).items()}
    for prompt in range(PROMPTS):
        own = [row for row in rows if row["prompt_ordinal"] == prompt]
        assert facts[prompt].sums["response_tokens"] == sum(len(row["response_tokens"]) for row in own)
        assert sum(facts[prompt].tokens.values()) == facts[prompt].sums["loss_tokens"]
        assert facts[prompt].tokens[0] == sum(row[STRETCH_TOKENS][0] for row in own)


def test_a_prompt_goes_on_from_the_shard_that_it_names(tmp_path: Path) -> None:
    """Also where an earlier shard, from which another prompt goes on, has less of it."""
    made = sliced_spec(rollout__slice_tokens=1)
    prompts = range(PROMPTS)
    first, _ = draw(tmp_path, made, 1, prompts, [SliceTask(1, 1)] * PROMPTS)
    early = going_on(first, prompts, 1)
    ahead, behind, *_ = sorted(early)
    second, _ = draw(tmp_path, made, 2, [ahead], [early[ahead]])
    later = going_on(second, [ahead], 1)
    third, _ = draw(tmp_path, made, 3, [ahead, behind], [later[ahead], early[behind]])
    assert third.slices is not None
    drawn = dict(zip((ahead, behind), third.slices.lengths, strict=True))
    assert (max(drawn[ahead]), max(drawn[behind])) == (3, 2)


def test_lengths_are_those_of_whole_responses(tmp_path: Path) -> None:
    """The last slice goes on to the end; what is drawn in the first ones is what is drawn at once."""
    made = sliced_spec()
    sliced = table_of(tmp_path, drawn_in_slices(tmp_path, made)).to_pylist()
    whole, _ = draw(tmp_path / "whole", made, 1, range(PROMPTS), [SliceTask(1, None)] * PROMPTS)
    assert whole.slices is not None and all(whole.slices.completed)
    rows = table_of(tmp_path / "whole", [whole]).to_pylist()
    assert [len(row["response_tokens"]) for row in sliced] == [len(row["response_tokens"]) for row in rows]
    for one, other in zip(sliced, rows, strict=True):
        first = one[STRETCH_TOKENS][0]
        assert one["response_tokens"][: first - 1] == other["response_tokens"][: first - 1]


def test_only_complete_groups_are_scored(tmp_path: Path) -> None:
    made = sliced_spec()
    first, stream = draw(tmp_path, made, 1, range(PROMPTS), [SliceTask(1, SLICE)] * PROMPTS)
    facts = first.slices
    assert facts is not None
    complete = [prompt for prompt, completed in enumerate(facts.completed) if completed]
    assert 0 < len(complete) < PROMPTS
    assert facts.scored == tuple(SAMPLES if prompt in complete else 0 for prompt in range(PROMPTS))
    assert table_of(tmp_path, [first])["prompt_ordinal"].unique().to_pylist() == complete
    carried = load_carried(tmp_path, ref_of(first))
    assert carried["prompt_ordinal"].unique().to_pylist() == [n for n in range(PROMPTS) if n not in complete]
    assert first.prompts == PROMPTS and len(first.group_digests) == 32 * PROMPTS
    for prompt, completed in enumerate(facts.completed):
        longest = max(len(row["tokens"]) for row in carried.to_pylist()) if prompt not in complete else completed
        assert 0 < longest <= SLICE
    assert {tuple(request.limits.tolist()) for request in stream.asked} == {(SLICE, SLICE)}


def test_an_ended_response_is_not_drawn_again_while_its_group_goes_on(tmp_path: Path) -> None:
    made = sliced_spec()
    first, _ = draw(tmp_path, made, 1, range(PROMPTS), [SliceTask(1, SLICE)] * PROMPTS)
    carried = load_carried(tmp_path, ref_of(first))
    open_responses = sum(not row["finish"] for row in carried.to_pylist())
    assert open_responses < carried.num_rows, "a group with one response that has ended"
    going = going_on(first, range(PROMPTS), None)
    _, stream = draw(tmp_path, made, 2, sorted(going), [going[n] for n in sorted(going)])
    assert sum(request.seeds.size for request in stream.asked) == open_responses
    drawn = np.concatenate([request.drawn for request in stream.asked])
    assert drawn.tolist() == [SLICE] * open_responses


def test_what_an_earlier_term_has_drawn_or_sealed_is_not_drawn_again(tmp_path: Path) -> None:
    made = sliced_spec()
    quiet = drawn_in_slices(tmp_path / "quiet", made)
    slices = [SliceTask(1, SLICE)] * PROMPTS
    first, _ = draw(tmp_path / "killed", made, 1, range(PROMPTS), slices)
    again, stream = draw(tmp_path / "killed", made, 1, range(PROMPTS), slices, term=2)
    assert again.adopted and not stream.asked
    assert again.slices == first.slices and again.group_digests == first.group_digests
    folder = tmp_path / "killed" / first.folder
    for name in ("manifest.json", "samples.parquet", CARRIED_FILE):
        (folder / name).unlink()
    remade, stream = draw(tmp_path / "killed", made, 1, range(PROMPTS), slices, term=3)
    assert len(stream.asked) == 2, "chunks are removed once a shard is sealed"
    assert remade.group_digests == first.group_digests == quiet[0].group_digests


def test_a_slice_that_is_durable_is_taken_from_its_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sliced_spec()
    quiet, _ = draw(tmp_path / "quiet", made, 1, range(PROMPTS), [SliceTask(1, SLICE)] * PROMPTS)

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Collector, "_score_slice", killed)
        with pytest.raises(Killed):
            draw(tmp_path, made, 1, range(PROMPTS), [SliceTask(1, SLICE)] * PROMPTS)
    again, stream = draw(tmp_path, made, 1, range(PROMPTS), [SliceTask(1, SLICE)] * PROMPTS, term=2)
    assert len(stream.asked) == 1, "the first of two batches was durable"
    assert digests([again]) == digests([quiet])
    assert again.slices == quiet.slices


def test_a_damaged_seal_is_never_gone_on_from(tmp_path: Path) -> None:
    made = sliced_spec()
    first, _ = draw(tmp_path, made, 1, range(PROMPTS), [SliceTask(1, SLICE)] * PROMPTS)
    going = going_on(first, range(PROMPTS))
    damage(tmp_path / first.folder / CARRIED_FILE)
    with pytest.raises(DataError, match=CARRIED_FILE):
        draw(tmp_path, made, 2, sorted(going), [going[n] for n in sorted(going)])


@pytest.mark.parametrize("lost", [False, True], ids=["damaged", "missing"])
def test_a_lost_seal_is_fetched_from_the_durable_tier(tmp_path: Path, lost: bool) -> None:
    made = sliced_spec()
    here = tmp_path / "run"
    quiet = tmp_path / "quiet"
    first, _ = draw(here, made, 1, range(PROMPTS), [SliceTask(1, SLICE)] * PROMPTS)
    going = going_on(first, range(PROMPTS))
    shutil.copytree(here, quiet)
    expected, _ = draw(quiet, made, 2, sorted(going), [going[n] for n in sorted(going)])

    class Tier(NoStore):
        def fetch(self, folder: str, manifest_sha256: str | None = None, check: Check | None = None) -> bool:
            shutil.rmtree(here / folder, ignore_errors=True)
            shutil.copytree(quiet / folder, here / folder)
            return True

    if lost:
        shutil.rmtree(here / first.folder)
    else:
        damage(here / first.folder / CARRIED_FILE)
    again, _ = draw(here, made, 2, sorted(going), [going[n] for n in sorted(going)], store=Tier())
    assert digests([again]) == digests([expected])


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_shard_without_complete_groups_has_the_columns_of_others(tmp_path: Path) -> None:
    made = sliced_spec(rollout__slice_tokens=1, rewards__parts__0__on_failure="mask")
    prompts = range(PROMPTS)
    empty, _ = draw(tmp_path, made, 1, prompts, [SliceTask(1, 1)] * PROMPTS)
    whole, _ = draw(tmp_path, made, 2, prompts, [SliceTask(2, None)] * PROMPTS)
    assert (empty.samples, whole.samples) == (0, PROMPTS * SAMPLES)
    schemas = [pq.read_schema(tmp_path / one.folder / SAMPLES_FILE) for one in (empty, whole)]
    assert schemas[0].names == schemas[1].names


def test_other_weights_or_another_slice_are_another_plan(tmp_path: Path) -> None:
    """Leftovers of a round that was planned otherwise are not used."""
    made = sliced_spec()
    draw(tmp_path, made, 1, range(PROMPTS), [SliceTask(1, SLICE)] * PROMPTS)
    other, stream = draw(tmp_path, made, 1, range(PROMPTS), [SliceTask(1, SLICE - 1)] * PROMPTS, term=2)
    assert not other.adopted and stream.asked
    later = [replace(SliceTask(1, SLICE), started=0)] * PROMPTS
    other, stream = draw(tmp_path, made, 1, range(PROMPTS), later, term=3)
    assert not other.adopted and stream.asked


def test_what_is_behind_an_iterations_end_is_thrown_away_and_drawn_again(tmp_path: Path) -> None:
    """Groups that go on, and groups that are complete, keep three tokens of each response, under the version that drew them."""
    made = sliced_spec()
    first, _ = draw(tmp_path, made, 1, range(PROMPTS), [SliceTask(1, SLICE)] * PROMPTS)
    facts = first.slices
    assert facts is not None and 0 < sum(bool(each) for each in facts.completed) < PROMPTS
    before = {
        (row["prompt_ordinal"], row["sample"]): row["tokens"]
        for row in load_carried(tmp_path, ref_of(first)).to_pylist()
    }
    before |= {
        (row["prompt_ordinal"], row["sample"]): row["response_tokens"]
        for row in table_of(tmp_path, [first]).to_pylist()
    }
    assert {key: len(tokens) for key, tokens in before.items()} == {
        (prompt, sample): facts.lengths[prompt][sample] for prompt in range(PROMPTS) for sample in range(SAMPLES)
    }
    kept = 3
    going = [SliceTask(1, None, ShardPlace(1, 0, 0), ref_of(first), kept)] * PROMPTS
    second, stream = draw(tmp_path, made, 2, range(PROMPTS), going)
    rows = table_of(tmp_path, [second]).to_pylist()
    again = 0
    for row in rows:
        tokens = before[row["prompt_ordinal"], row["sample"]]
        assert row["response_tokens"][:kept] == tokens[:kept]
        if len(tokens) <= kept:
            assert row["response_tokens"] == tokens and row[STRETCH_VERSIONS] == [0]
            continue
        again += 1
        assert row[STRETCH_TOKENS] == [kept, len(row["response_tokens"]) - kept]
        assert row[STRETCH_VERSIONS] == [0, 1]
    assert 0 < again == sum(request.seeds.size for request in stream.asked)
    assert {drawn for request in stream.asked for drawn in request.drawn.tolist()} == {kept}
    with pytest.raises(DataError, match="two rows for sample 0"):
        table_of(tmp_path, [first, second])
    complete = tuple(prompt for prompt, completed in enumerate(facts.completed) if completed)
    both = [replace(ref_of(first), without=complete), ref_of(second)]
    assert load_table(tmp_path, both).to_pylist() == rows, "each group is read as it is learnt from"


def test_as_many_tokens_as_are_kept_make_another_plan(tmp_path: Path) -> None:
    made = sliced_spec()
    first, _ = draw(tmp_path, made, 1, range(PROMPTS), [SliceTask(1, SLICE)] * PROMPTS)
    for term, kept in enumerate((2, 3), start=1):
        going = [SliceTask(1, None, ShardPlace(1, 0, 0), ref_of(first), kept)] * PROMPTS
        other, stream = draw(tmp_path, made, 2, range(PROMPTS), going, term=term)
        assert not other.adopted and stream.asked


@pytest.mark.parametrize("slice_tokens", [1, SLICE], ids=["nothing complete", "some complete"])
def test_judges_are_asked_about_complete_groups_and_a_placement_knows_what_was_drawn(
    tmp_path: Path, slice_tokens: int
) -> None:
    """What goes on has nothing left to do in its round; tokens of earlier slices are read, not drawn, in the next."""
    rule = {"name": "rule", "function": "virtual_score"}
    made = sliced_spec(rewards__parts=[rule, JUDGE], rollout__slice_tokens=slice_tokens)
    prompts = range(PROMPTS)
    first, stream = draw(tmp_path, made, 1, prompts, [SliceTask(1, slice_tokens)] * PROMPTS)
    assert first.slices is not None
    complete = [prompt for prompt, completed in zip(prompts, first.slices.completed, strict=True) if completed]
    assert bool(complete) == (slice_tokens > 1)
    assert len(stream.judged) == SAMPLES * len(complete)
    judged = pq.read_table(tmp_path / first.folder / JUDGEMENTS_FILE)["prompt_ordinal"].to_pylist()
    assert sorted(set(judged)) == complete
    assert sum(rolled for rolled, _ in stream.notes.values()) == PROMPTS * SAMPLES
    assert sum(told for _, told in stream.notes.values()) == PROMPTS * SAMPLES
    work = read_shard_work(tmp_path, first)
    drawn = [tokens for each in first.slices.lengths for tokens in each]
    assert work.response_tokens == tuple(drawn)
    assert [bool(each) for each in work.judged] == [prompt in complete for prompt in prompts for _ in range(SAMPLES)]
    going = going_on(first, prompts, slice_tokens)
    second, _ = draw(tmp_path, made, 2, sorted(going), [going[n] for n in sorted(going)])
    again = read_shard_work(tmp_path, second)
    assert second.slices is not None
    assert min(again.prompt_tokens) > min(work.prompt_tokens)
    assert work.goes_on == (False,) * PROMPTS * SAMPLES and all(again.goes_on), "what was drawn is read again"
    assert set(again.ordinals) == set(going) and max(again.response_tokens) <= slice_tokens
    before = dict(zip(prompts, first.slices.lengths, strict=True))
    new = sum(sum(lengths) - sum(before[n]) for n, lengths in zip(sorted(going), second.slices.lengths, strict=True))
    ended_before = sum(again.response_tokens) - new
    assert 0 <= ended_before <= len(again.ordinals), "a judged response that draws nothing counts as one token"


def test_verdicts_on_other_groups_of_another_writer_do_not_count(tmp_path: Path) -> None:
    """Their numbers are those of other responses."""
    log = ShardLog(tmp_path, WorkKey("run", 0, 1, "collect"), term=1, plan="a plan")
    item = JudgeItem(number=0, prompt="p", response="r", answer="a", seeds=(1,))
    log.judgements(0, complete=[1, 2]).append("helpful", [item], [Verdict(0, (Judgement("good", 0.5, 3, 9),))])
    same = log.judgements(0, complete=[1, 2])
    assert same.find("helpful", item) is not None
    other = log.judgements(0, complete=[2])
    other.use_all()
    assert other.table([]).num_rows == 0 and other.find("helpful", item) is None
