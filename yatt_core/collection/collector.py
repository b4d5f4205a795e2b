"""Collects the experience of logical shards: the controller's work from prompts to sealed files, without Ray.

Consumes shard tasks and a stream of batches that engines and judges answer; produces chunks that are durable
before anything uses them, sealed experience files, and receipts. Batches and shards that an earlier attempt
finished are taken from disk. Responses that have ended are judged and scored while engines work on the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from yatt_core.collection.open_shards import OpenBatch, OpenShard
from yatt_core.collection.scores import BatchScores, Questions, merged
from yatt_core.collection.shard_plan import shard_plan
from yatt_core.collection.shard_rows import (
    BatchMember,
    completions_of,
    members_of,
    no_samples,
    response_table,
    score_table,
    turn_result,
)
from yatt_core.collection.slices import Sealed, SliceBatch, batches_of, rows_by_member
from yatt_core.collection.stages import stage
from yatt_core.collection.token_credit import token_reward_column
from yatt_core.collection.turns import Turns, answers_of, durable_turn, turns_of
from yatt_core.dispatch.stream import Arrival, Stream, VerdictArrival
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.experience.carried import GoingGroups, load_groups
from yatt_core.experience.judge_log import JUDGEMENTS_SCHEMA
from yatt_core.experience.shard_log import ShardLog, adopt
from yatt_core.judges.effort import add_effort, remarkable
from yatt_core.keys import iteration_folder, shard_folder, wave_name
from yatt_core.prompts.codec import TextCodec, encode_privileged, encode_question
from yatt_core.prompts.stream import Prompt, media_of
from yatt_core.protocols.generation import GenerateResult, Int32
from yatt_core.protocols.judges import JudgeRequest, ScoreEffort
from yatt_core.protocols.receipts import (
    JUDGE_PROMPT_TOKENS,
    JUDGE_TOKENS,
    PEAK_BYTES,
    PromptRef,
    ShardReceipt,
    ShardRef,
    ShardTask,
)
from yatt_core.rewards.scoring import RewardScorer
from yatt_core.spec import RunSpec
from yatt_core.spec.roles import device_judges
from yatt_core.spent_time import DATA, spent
from yatt_core.storage.run_store import NoStore, RunStore
from yatt_core.tools.dialogue import Dialogue, DialogueResponse
from yatt_core.tools.toolbox import Toolbox

log = logging.getLogger(__name__)
QUICK_SECONDS = 1.0
"""Scores of a shard that took less are as quickly computed again as read from a chunk that a crash has left."""


class PromptSource(Protocol):
    """Provides prompts; `Inputs` is an implementation."""

    def prompt(self, reference: PromptRef) -> Prompt:
        """Returns the prompt to which a reference points."""
        ...


@dataclass(frozen=True, slots=True)
class Collector:
    """Produces the shards of a run."""

    spec: RunSpec
    run_folder: Path
    inputs: PromptSource
    codec: TextCodec
    scorer: RewardScorer
    toolbox: Toolbox
    store: RunStore = field(default_factory=NoStore)

    def collect(self, tasks: Sequence[ShardTask], stream: Stream[OpenBatch]) -> Iterator[ShardReceipt]:
        """Yields each shard's receipt as its manifest becomes durable.

        The decode batches of all shards run concurrently. If the stream is cut, shards with missing responses
        are left unfinished.
        """
        self._fetch_sealed(tasks)
        with closing(turns_of(self.spec, self.codec, self.toolbox)) as turns:
            yield from self._collect(tasks, turns, stream)

    def _collect(self, tasks: Sequence[ShardTask], turns: Turns, stream: Stream[OpenBatch]) -> Iterator[ShardReceipt]:
        for task in tasks:
            if (adopted := adopt(self.run_folder, task.key, shard_plan(self.spec, task))) is not None:
                self.store.publish(adopted.folder)  # the process that sealed it may have died before this
                self._note_adopted(task, stream)
                yield adopted
                continue
            shard = self._open(task)
            self._submit(shard, turns, stream)
            if shard.complete:
                yield self._seal(shard, stream)
        for arrival in stream.arrivals(beside=turns.waits):
            # First, so that it is durable although the tools may have failed, which is raised where answers are taken.
            if isinstance(arrival, VerdictArrival):
                self._be_told(arrival.tag, arrival)
            elif arrival is not None:
                self._take(arrival, turns, stream)
            if arrival is not None:
                yield from self._settled([arrival.tag], stream)
            yield from self._settled(list(self._take_answers(turns, stream)), stream)

    def _settled(self, batches: Sequence[OpenBatch], stream: Stream[OpenBatch]) -> Iterator[ShardReceipt]:
        """Settles batches of which something has arrived; seals the shards that they complete, each once."""
        for batch in batches:
            self._settle(batch, stream)
        for shard in {id(batch.shard): batch.shard for batch in batches}.values():
            if shard.complete:
                yield self._seal(shard, stream)

    def _fetch_sealed(self, tasks: Sequence[ShardTask]) -> None:
        """Fetches shards that controllers on other disks have sealed, but whose receipts were lost with them.

        If the durable tier does not answer, they are made again, with the same samples.
        """
        below = {str(iteration_folder(task.key.branch, task.key.iteration)) for task in tasks}
        prefixes = tuple(str(shard_folder(task.key, 0)).removesuffix("0000") for task in tasks)
        try:
            sealed = [folder for each in below for folder, whole in self.store.folders(each).items() if whole]
            for folder in sealed:
                if folder.startswith(prefixes) and not (self.run_folder / folder).exists():
                    self.store.fetch(folder)
        except (InfrastructureError, ConfigurationError) as error:
            log.warning("shards that are sealed on other disks cannot be looked for: %s", error)

    def _open(self, task: ShardTask) -> OpenShard:
        with spent(DATA, "prompts"):
            prompts = [self.inputs.prompt(ref) for ref in task.prompts]
            tokens = [encode_question(prompt, self.codec) for prompt in prompts]
            sealed = self._sealed(task)
        log = ShardLog(
            run_folder=self.run_folder,
            key=task.key,
            term=task.term,
            plan=shard_plan(self.spec, task),
            writers=task.writers,
        )
        return OpenShard(
            task=task, log=log, prompts=prompts, tokens=tokens, batches=batches_of(task, self.spec), sealed=sealed
        )

    def _sealed(self, task: ShardTask) -> Sealed:
        """Returns what is sealed of the groups that go on, intact by its digests."""
        going: dict[ShardRef, list[int]] = {}
        for one, ref in zip(task.slices, task.prompts, strict=False):  # no slices if responses are drawn whole
            if one.sealed is not None:
                going.setdefault(one.sealed, []).append(ref.ordinal)
        return rows_by_member(self._groups(shard, ordinals) for shard, ordinals in going.items())

    def _groups(self, shard: ShardRef, ordinals: Sequence[int]) -> pa.Table:
        """Returns groups of a shard that go on; a missing or damaged copy is fetched from the durable tier once."""
        try:
            return load_groups(self.run_folder, shard, ordinals)
        except DataError as error:
            if not self.store.fetch(shard.folder, shard.manifest_sha256):
                raise
            log.warning("%s is read from the durable tier: %s", shard.folder, error)
        return load_groups(self.run_folder, shard, ordinals)

    def _submit(self, shard: OpenShard, turns: Turns, stream: Stream[OpenBatch]) -> None:
        """Requests what the shard still lacks; a batch whose responses are on disk is only judged and scored."""
        for number, rows in enumerate(shard.batches):
            batch = self._open_batch(shard, number, rows)
            if batch.slices is not None:
                self._draw_slice(batch, batch.slices, stream)
            elif (responses := shard.log.responses(number)) is None:
                self._go_on(batch, turns, stream)
                self._score(batch, stream)
            else:
                self._score_logged(batch, responses, stream)
            self._settle(batch, stream)

    def _open_batch(self, shard: OpenShard, number: int, rows: range) -> OpenBatch:
        members = members_of(self.spec, [shard.task.prompts[i] for i in rows])
        places = [i for i in rows for _ in range(self.spec.rollout.samples_per_prompt)]
        prompts = [shard.prompts[i] for i in places]
        dialogue = Dialogue(self.spec.rollout, self.codec, [shard.tokens[i] for i in places], media_of(prompts))
        scores = BatchScores(
            spec=self.spec,
            scorer=self.scorer,
            key=shard.task.key,
            members=members,
            prompts=prompts,
            log=shard.log.judgements(number),
        )
        return OpenBatch(
            shard=shard,
            number=number,
            rows=rows,
            members=members,
            dialogue=dialogue,
            turns=shard.log.turns(number),
            joined=shard.log.joined_turns(number),
            scores=scores,
            slices=self._slices(shard, rows, members),
        )

    def _slices(self, shard: OpenShard, rows: range, members: Sequence[BatchMember]) -> SliceBatch | None:
        if not shard.task.slices:
            return None
        return SliceBatch(
            spec=self.spec,
            codec=self.codec,
            key=shard.task.key,
            members=members,
            slices=[shard.task.slices[i] for i in rows],
            prompts=[shard.tokens[i] for i in rows],
            sealed=shard.sealed,
        )

    def _draw_slice(self, batch: OpenBatch, slices: SliceBatch, stream: Stream[OpenBatch]) -> None:
        """Requests a batch's slice, or what is left of it: it may be on disk, or some of its turns."""
        drawn = batch.shard.log.slice(batch.number)
        if drawn is not None:
            slices.restore(drawn)
            self._score_slice(batch, slices, stream)
        else:
            self._go_on_with_slice(batch, slices, stream)

    def _go_on_with_slice(self, batch: OpenBatch, slices: SliceBatch, stream: Stream[OpenBatch]) -> None:
        """Requests a batch's next step, behind those that are on disk, or ends its slice."""
        tools = self.spec.rollout.tools is not None
        while slices.begin_step():
            turn = batch.turns.turn() if tools else None
            if turn is None:
                stream.submit(batch, slices.request(self.codec.stop_tokens, batch.shard.task.weight_version))
                return
            self._hear_turns(batch, slices, turn_result(turn, batch.shard.task.weight_version))
        with stage(batch.shard.timing, "log"):
            batch.shard.log.append_slice(batch.number, slices.table())
        self._score_slice(batch, slices, stream)

    def _take_slice(self, arrival: Arrival[OpenBatch], slices: SliceBatch, stream: Stream[OpenBatch]) -> None:
        """Takes new tokens: with tools a whole step at once, which is durable before a tool is called."""
        batch = arrival.tag
        if self.spec.rollout.tools is None:
            slices.hear(arrival.piece.result, arrival.piece.rows)
        else:
            batch.pieces.append(arrival.piece)
        if not arrival.complete:
            return
        if batch.pieces:
            self._hear_turns(batch, slices, durable_turn(batch))
        self._go_on_with_slice(batch, slices, stream)

    def _hear_turns(self, batch: OpenBatch, slices: SliceBatch, result: GenerateResult) -> None:
        """Adds a step, which is durable, and answers the calls in it from disk or by calling the tools."""
        slices.hear(result, range(len(result.lengths)))
        slices.tell(answers_of(batch, slices.calls, self.toolbox), batch.shard.task.weight_version)

    def _score_slice(self, batch: OpenBatch, slices: SliceBatch, stream: Stream[OpenBatch]) -> None:
        """Narrows a batch whose slice is durable to its complete groups, and scores these."""
        shard = batch.shard
        complete = slices.complete
        shard.going[batch.number] = slices.going()
        rows = [batch.rows[index] for index in complete]
        numbers = [i for index in complete for i in slices.numbers(index)]
        batch.members = [batch.members[number] for number in numbers]
        if not rows:
            shard.finished[batch.number] = no_samples(self.spec)
            self._note(batch, 0, 0, stream)
            return
        batch.scores = BatchScores(
            spec=self.spec,
            scorer=self.scorer,
            key=shard.task.key,
            members=batch.members,
            prompts=[shard.prompts[i] for i in rows for _ in range(self.spec.rollout.samples_per_prompt)],
            log=shard.log.judgements(batch.number, complete=[shard.task.prompts[i].ordinal for i in rows]),
        )
        responses = shard.log.responses(batch.number)
        if responses is None:
            ended = [slices.responses[number] for number in numbers]
            with stage(shard.timing, "log"):
                responses = self._table(
                    shard, rows, [one.as_ended(self.codec) for one in ended], [one.stretches for one in ended]
                )
                shard.log.append_responses(batch.number, responses)
        self._score_logged(batch, responses, stream)

    def _go_on(self, batch: OpenBatch, turns: Turns, stream: Stream[OpenBatch]) -> None:
        """Goes on with a batch from what is on disk of its turns; finishes it if all of its responses have ended."""
        turns.go_on(batch, stream)
        self._finish(batch)

    def _take(self, arrival: Arrival[OpenBatch], turns: Turns, stream: Stream[OpenBatch]) -> None:
        """Takes what was drawn of a decode batch.

        Responses that have ended are scored immediately, except for those that complete the batch: these are scored
        when the whole batch is durable.
        """
        batch = arrival.tag
        timing = batch.shard.timing
        timing["generate"] = timing.get("generate", 0.0) + arrival.piece.result.seconds
        if batch.slices is not None:
            self._take_slice(arrival, batch.slices, stream)
            return
        turns.take(arrival, stream)
        self._finish(batch)
        self._score(batch, stream)

    def _take_answers(self, turns: Turns, stream: Stream[OpenBatch]) -> Iterator[OpenBatch]:
        """Takes the answers of tools that have arrived; yields the batches that they are of."""
        for batch in turns.take_answers(stream):
            self._finish(batch)
            self._score(batch, stream)
            yield batch

    def _finish(self, batch: OpenBatch) -> None:
        """Makes a batch's responses durable once all of them have ended."""
        if batch.dialogue.members or batch.responses is not None:
            return
        shard = batch.shard
        with stage(shard.timing, "log"):
            batch.responses = self._table(shard, batch.rows, batch.dialogue.responses)
            shard.log.append_responses(batch.number, batch.responses)

    def _table(
        self,
        shard: OpenShard,
        rows: Sequence[int],
        responses: Sequence[DialogueResponse],
        stretches: Sequence[Sequence[tuple[int, int]]] | None = None,
    ) -> pa.Table:
        """Returns the responses to some of a shard's prompts. stretches: as for `response_table`."""
        return response_table(
            refs=[shard.task.prompts[i] for i in rows],
            prompts=[shard.prompts[i] for i in rows],
            tokens=[shard.tokens[i] for i in rows],
            responses=responses,
            version=shard.task.weight_version,
            several_turns=self.spec.rollout.tools is not None,
            with_images=self.spec.data.has_images,
            shown_to_teacher=self._shown_to_teacher([shard.prompts[i] for i in rows]),
            stretches=stretches,
        )

    def _shown_to_teacher(self, prompts: Sequence[Prompt]) -> list[Int32] | None:
        distillation = self.spec.algorithm.distillation
        if distillation is None or distillation.privileged is None:
            return None
        return [encode_privileged(prompt, distillation.privileged.template, self.codec) for prompt in prompts]

    def _score(self, batch: OpenBatch, stream: Stream[OpenBatch]) -> None:
        """Scores the responses that have ended, or has them judged first."""
        with stage(batch.shard.timing, "reward"):
            ended = {
                number: response.completion
                for number, response in enumerate(batch.dialogue.responses)
                if response.finish and not batch.scores.has_heard(number)
            }
            questions = batch.scores.hear(ended)
        self._ask(batch, questions, stream)

    def _score_logged(self, batch: OpenBatch, responses: pa.Table, stream: Stream[OpenBatch]) -> None:
        """Takes responses found on disk, with their scores if these are on disk too; otherwise, scores them."""
        shard = batch.shard
        batch.responses = responses
        if (scores := shard.log.scores(batch.number)) is not None:
            batch.scores.log.use_all()
            self._keep(batch, responses, scores)
            self._note(batch, len(batch.members), len(batch.members), stream)
            return
        with stage(shard.timing, "reward"):
            questions = batch.scores.hear(dict(enumerate(completions_of(responses, self.codec))))
        self._ask(batch, questions, stream)

    def _ask(self, batch: OpenBatch, questions: Sequence[Questions], stream: Stream[OpenBatch]) -> None:
        """Sends the questions to the judges, one request per reward part."""
        for part, items in merged(questions).items():
            stream.submit_judging(batch, part, JudgeRequest(items))

    def _be_told(self, batch: OpenBatch, judged: VerdictArrival[OpenBatch]) -> None:
        """Takes verdicts and makes them durable before they are used."""
        timing = batch.shard.timing
        with stage(timing, "judged"):
            batch.scores.be_told(judged.part, judged.verdicts)
        judgements = [one for verdict in judged.verdicts for one in verdict.judgements]
        for name, tokens in (
            (JUDGE_TOKENS, sum(one.tokens for one in judgements)),
            (JUDGE_PROMPT_TOKENS, sum(one.prompt_tokens for one in judgements)),
        ):
            timing[name] = timing.get(name, 0.0) + tokens
        self._note_efforts(batch, judged)

    def _note_efforts(self, batch: OpenBatch, judged: VerdictArrival[OpenBatch]) -> None:
        """Notes what it took to ask endpoints: telemetry."""
        shard = batch.shard
        ids = {ref.ordinal: prompt.prompt_id for ref, prompt in zip(shard.task.prompts, shard.prompts, strict=True)}
        for verdict in judged.verdicts:
            effort = verdict.effort
            if effort is None:
                continue
            add_effort(shard.timing, judged.part, effort)
            member = batch.members[verdict.number]
            one = ScoreEffort(
                part=judged.part,
                prompt_ordinal=member.ordinal,
                prompt_id=ids[member.ordinal],
                sample=member.sample,
                seconds=effort.seconds,
                waited=effort.waited,
                retries=effort.retries,
                tokens=effort.tokens,
                prompt_tokens=effort.prompt_tokens,
                cost=effort.cost,
            )
            shard.efforts = list(remarkable([*shard.efforts, one]))

    def _settle(self, batch: OpenBatch, stream: Stream[OpenBatch]) -> None:
        """Makes a batch's scores durable, or leaves that to the seal, if its responses are durable and all of them are scored."""
        shard = batch.shard
        if batch.number in shard.finished:
            return
        self._note(batch, batch.scores.ended, len(batch.scores.scores), stream)
        if batch.responses is None or not batch.scores.complete:
            return
        with stage(shard.timing, "log"):
            found = batch.scores.in_order()
            critique = self.spec.rewards.critique
            tokens = None
            if critique is not None:
                tokens = token_reward_column(
                    critique=critique,
                    responses=batch.responses,
                    scores=found,
                    decode=self.codec.decode,
                    reading=self.codec.reading,
                )
            scores = score_table(self.spec, found, tokens)
            if not self._is_sealed_at_once(batch):
                shard.log.append_scores(batch.number, scores)
        self._keep(batch, batch.responses, scores)

    def _is_sealed_at_once(self, batch: OpenBatch) -> bool:
        """Returns True if a batch completes its shard, so that its scores are durable with the manifest, which is written next.

        Scores that took long have a chunk of their own all the same, so that a full disk does not cost them.
        """
        shard = batch.shard
        return len(shard.finished) + 1 == len(shard.batches) and shard.timing.get("reward", 0.0) < QUICK_SECONDS

    def _keep(self, batch: OpenBatch, responses: pa.Table, scores: pa.Table) -> None:
        """Keeps a batch whose scores are durable, or about to be, until its shard is sealed."""
        batch.shard.finished[batch.number] = _joined(responses, scores)
        if self.spec.rewards.judges:
            batch.shard.judgements[batch.number] = batch.scores.log.table(batch.members)

    def _note(self, batch: OpenBatch, ended: int, scored: int, stream: Stream[OpenBatch]) -> None:
        """Reports a batch's progress to the dispatcher if a placement uses it.

        ended, scored: of its members; a response that has drawn its slice and goes on has nothing left to do in its wave.
        """
        if self.spec.rewards.judges:
            key = batch.shard.task.key
            going = len(batch.rows) * self.spec.rollout.samples_per_prompt - len(batch.members)
            stream.note(wave_name(key), f"{key.shard}/{batch.number}", going + ended, going + scored)

    def _note_adopted(self, task: ShardTask, stream: Stream[OpenBatch]) -> None:
        if self.spec.rewards.judges:
            for number, rows in enumerate(batches_of(task, self.spec)):
                samples = len(rows) * self.spec.rollout.samples_per_prompt
                stream.note(wave_name(task.key), f"{task.key.shard}/{number}", samples, samples)

    def _seal(self, shard: OpenShard, stream: Stream[OpenBatch]) -> ShardReceipt:
        with stage(shard.timing, "seal"):
            drawn = [shard.finished[i] for i in range(len(shard.batches))]
            table = pa.concat_tables([table for table in drawn if table.num_rows] or drawn[:1])
            here = [part.name for part in device_judges(self.spec)]
            receipt = shard.log.seal(
                table=table,
                timing=shard.timing,
                judgements=self._judgements(shard),
                judged_here=here,
                going=GoingGroups.joined(shard.going),
            )
        with stage(shard.timing, "store"):
            self.store.publish(receipt.folder)
        timing = {**shard.timing, PEAK_BYTES: float(stream.peak_bytes)}
        return replace(receipt, timing=timing, efforts=tuple(shard.efforts))

    def _judgements(self, shard: OpenShard) -> pa.Table | None:
        """Returns all verdicts on the shard's responses; None for a run without judges."""
        if not self.spec.rewards.judges:
            return None
        drawn = [shard.judgements[number] for number in sorted(shard.judgements)]
        return pa.concat_tables(drawn) if drawn else JUDGEMENTS_SCHEMA.empty_table()


def _joined(responses: pa.Table, scores: pa.Table) -> pa.Table:
    """Returns the responses with the columns of their scores."""
    for name in scores.column_names:
        responses = responses.append_column(scores.schema.field(name), scores.column(name))
    return responses
