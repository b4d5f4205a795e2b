"""Asks every endpoint that judges one question: whether address, model name and key are right, and its answer can be read.

Consumes a spec. Produces a trial for each endpoint; sends the first prompt of the data, with a made-up response. Only commands
at a terminal import this module: a process that serves HTTP must not send requests to addresses that its callers name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flows.prefect_io.secret_blocks import read_block
from ops.preflight.reward_trial import ANSWER, RewardTrial
from yatt_core.datasets.sources import first_prompts
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.judges.endpoint import EndpointJudge
from yatt_core.judges.seeds import judgement_seeds
from yatt_core.problems import Problems
from yatt_core.prompts.prompt import Prompt
from yatt_core.protocols.judges import JudgeItem, Verdict
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.judges import EndpointPart

MADE_UP = "The answer is 42."
PROMPTS = 20
"""Number of prompts of each source among which one with a reference answer is looked for."""


@dataclass(frozen=True, slots=True)
class EndpointTrials:
    """What the endpoints of a spec answered.

    trials: one for each part.
    warnings: answers without a score, and endpoints that gave no answer while another one of their part did.
    """

    trials: tuple[RewardTrial, ...] = ()
    warnings: tuple[str, ...] = ()


def ask_endpoints(spec: RunSpec) -> EndpointTrials:
    """Sends one request to each endpoint of the spec, without retries, and returns what was answered.

    Raises `ConfigurationError` for an endpoint that rejects the request, or whose answer has no score although the spec calls
    that an error, and `InfrastructureError` for a part of which no endpoint answers; either names the part.
    """
    parts = [part for part in spec.rewards.judges if isinstance(part, EndpointPart)]
    if not parts:
        return EndpointTrials()
    prompts = first_prompts(spec.data, spec.seed, PROMPTS)
    prompt = next((each for each in prompts if each.answer is not None), prompts[0])
    problems = Problems()
    trials = list[RewardTrial]()
    warnings = list[str]()
    for part in parts:
        with problems.noting(), _explaining():
            trial, silent = _ask(part, prompt, spec.seed)
            trials.append(trial)
            where = f"rewards.parts {part.name!r}"
            warnings += [f"{where}: {trial.error}"] if trial.error else []
            warnings += [f"{where}: {each}; a run asks the other endpoints until it answers" for each in silent]
    problems.raise_any()
    return EndpointTrials(tuple(trials), tuple(warnings))


def _ask(part: EndpointPart, prompt: Prompt, seed: int) -> tuple[RewardTrial, tuple[str, ...]]:
    """Returns what a part's first endpoint that answers says, and the endpoints that do not, each with the reason."""
    response = MADE_UP if prompt.answer is None else prompt.answer
    seeds = judgement_seeds(part.name, 1, seed, branch=0, iteration=0, ordinal=0, sample=0)
    item = JudgeItem(
        number=0, prompt=prompt.text, response=response, answer=prompt.answer, seeds=seeds, steps=(response,)
    )
    asked = EndpointJudge(part, read_block).ask_once(item)
    verdict = asked.verdict
    said = _unread(part, verdict)
    if said and part.on_unparsed == "error":
        raise ConfigurationError(f"rewards.parts {part.name!r}: {asked.url}: {said}")
    trial = RewardTrial(
        part=part.name,
        prompt_id=prompt.prompt_id,
        has_answer=prompt.answer is not None,
        given="a made-up sentence" if prompt.answer is None else ANSWER,
        response=response,
        score=verdict.judgements[0].score if verdict.judgements else None,
        error=said,
        place="",
        failed=bool(said),
    )
    return trial, asked.silent


def _unread(part: EndpointPart, verdict: Verdict) -> str:
    """Returns why a verdict has no score; empty if it has one."""
    if not verdict.judgements:
        return verdict.error
    (judgement,) = verdict.judgements
    if judgement.score is not None:
        return ""
    return f"parse ({part.parse.kind}) finds no score in the answer {judgement.answer!r:.200}"


@contextmanager
def _explaining() -> Iterator[None]:
    """Adds to an endpoint's silence how to check without it."""
    try:
        yield
    except InfrastructureError as error:
        raise InfrastructureError(f"{error}; `yatt check --offline` asks no endpoint") from error
