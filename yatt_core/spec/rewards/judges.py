"""Judges: reward parts whose value comes from a model, which either the run itself or a third party serves."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from yatt_core.naming import Names
from yatt_core.secret_references import SecretReference
from yatt_core.spec.base import LONGEST_CALL_SECONDS, SpecModel
from yatt_core.spec.rewards.addresses import BaseUrl, FallbackEndpoint, TokenPrices, check_encrypted
from yatt_core.spec.rewards.parsing import ParseSpec, WrongSteps, YesNo
from yatt_core.spec.rewards.parts import OnFailure, RewardPartBase
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.model import GivenModelSpec, HubModel, ModelConfigFile, ModelFolder, ModelSizes
from yatt_core.spec.template import ANSWER, FINAL, PROMPT, RESPONSE, STEPS, THOUGHTS, fields_of

Aggregate = Literal["mean", "vote", "median", "min", "max"]

JudgeModel = Annotated[ModelFolder | HubModel | ModelConfigFile | ModelSizes, Field(discriminator="kind")]


class TorchJudge(SpecModel):
    """The torch rollout engine."""

    kind: Literal["torch"] = "torch"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and computation; exact runs need float32."""
    max_num_seqs: PositiveInt = 256
    """Maximum number of judgements that an engine generates at once."""


class VirtualJudge(SpecModel):
    """Seeded synthetic judgements generated at configured speeds on a scaled clock; for planning and tests.

    It needs no model. The score is a hash of prompt, response and seed, one of 0.0, 0.1 ... 0.9; `parse` is not
    used. A critique names each step with a probability of 0.4.
    """

    kind: Literal["virtual"] = "virtual"
    base_seconds: NonNegativeFloat = 0.006
    """Fixed time of a decode step, independent of its number of judgements."""
    seconds_per_sequence: NonNegativeFloat = 1.5e-5
    """Time that each judgement adds to a decode step."""
    seconds_per_context_token: NonNegativeFloat = 0.0
    """Time that each attended token adds to a decode step; used with continuous batching only."""
    seconds_per_prompt_token: NonNegativeFloat = 0.0
    """Time per token of prefill, which is done once for all judgements of a response."""
    clock_factor: PositiveFloat = 1.0
    """Virtual seconds per real second."""
    median_tokens: PositiveFloat = Field(default=16.0, le=1e9)
    """Median length of a judgement in tokens; lengths are log-normal."""
    sigma: NonNegativeFloat = Field(default=0.5, le=5.0)
    """Standard deviation of the logarithm of the length."""
    max_num_seqs: PositiveInt = 256
    """Maximum number of judgements that an engine generates at once."""


JudgeEngineSpec = Annotated[TorchJudge | VirtualJudge | VllmRollout, Field(discriminator="kind")]


class TemplatedPart(RewardPartBase):
    """Options shared by the judges that write an answer."""

    template: str = Field(min_length=1)
    """The judge's prompt, with the placeholders `{prompt}`, `{response}` (what `reads` says), `{thoughts}` and `{final}` (the
    thoughts of the last turn, and the rest of it), `{answer}` (the reference answer) and, for a critique, `{steps}` (the
    response's steps, each after its number: `[1] `); a literal brace is written `{{` or `}}`. Put what all questions share
    first, so that a prefix cache can reuse it."""
    judgements: int = Field(default=1, ge=1, le=1024)
    """Number of judgements per response."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature of the judgements; 0: greedy decoding."""
    max_new_tokens: PositiveInt = 16
    """Maximum number of tokens of a judgement."""
    parse: ParseSpec = YesNo()
    """How a score is extracted from a judgement."""
    parse_thoughts: bool = False
    """Whether the score may be in the judge's thoughts as well; otherwise only what follows them is read."""
    aggregate: Aggregate = "mean"
    """How several judgements are combined. `vote`: the most frequent score; of several equally frequent ones, the
    lowest."""
    on_unparsed: Literal["absent", "zero", "error"] = "absent"
    """What a judgement does that was cut at `max_new_tokens` before its score was certain, or in which there is no score.
    `absent`: it does not count; a response all of whose judgements are absent has no score, and nothing is learnt from it.
    `zero`: it scores 0. `error`: the part fails."""
    on_failure: OnFailure = "mask"
    """As for a function."""

    @field_validator("template")
    @classmethod
    def _known_placeholders(cls, template: str) -> str:
        fields = fields_of(template)
        if not fields & {RESPONSE, STEPS, FINAL, THOUGHTS}:
            raise ValueError("the template does not contain the response; add {response}")
        if unknown := sorted(fields - {PROMPT, RESPONSE, ANSWER, STEPS, FINAL, THOUGHTS}):
            raise ValueError(
                f"unknown placeholder {{{unknown[0]}}}; expected {{prompt}}, {{response}}, {{thoughts}}, {{final}}, {{answer}} "
                f"or {{steps}}; a literal brace is written {{{{ or }}}}"
            )
        return template

    @model_validator(mode="after")
    def _steps_if_wrong_ones_are_named(self) -> Self:
        if (STEPS in fields_of(self.template)) != isinstance(self.parse, WrongSteps):
            raise ValueError(
                "the placeholder {steps} and parse: {kind: wrong_steps} belong together: the judge sees the numbers that "
                "it names; use both or neither"
            )
        return self

    @model_validator(mode="after")
    def _judgements_differ(self) -> Self:
        if self.judgements > 1 and self.temperature == 0.0:
            raise ValueError(
                f"judgements {self.judgements} at temperature 0 would be identical; use judgements: 1 or a "
                "temperature above 0"
            )
        return self


class GenerativePart(TemplatedPart):
    """A judge model that the run itself serves on a rollout engine."""

    kind: Literal["generative"] = "generative"
    model: JudgeModel | None = None
    """A local Hugging Face folder; for `yatt plan` also a config.json or sizes. A virtual engine has no model."""
    engine: JudgeEngineSpec = TorchJudge()

    @model_validator(mode="after")
    def _model_for_its_engine(self) -> Self:
        virtual = isinstance(self.engine, VirtualJudge)
        if virtual and self.model is not None:
            raise ValueError("a virtual engine has no model; leave model out")
        if not virtual and self.model is None:
            raise ValueError("a judge needs a model; expected model: {kind: folder, path: ...}")
        return self


class EndpointPart(TemplatedPart):
    """A third-party judge behind an OpenAI-compatible `chat/completions` endpoint."""

    kind: Literal["endpoint"] = "endpoint"
    url: Annotated[BaseUrl, Names("url")]
    """Base URL of the API, such as `https://judge.example/v1`; requests go to `chat/completions` below it."""
    model: str = Field(min_length=1)
    """Name of the model at the endpoint."""
    credential: Annotated[SecretReference | None, Names("secret")] = None
    """Where the API key is; `null`: no key is sent."""
    allow_http: bool = False
    """Allow prompts and responses to be sent unencrypted to another machine."""
    seeded: bool = False
    """Whether the endpoint accepts a `seed` and always gives the same answer to the same request, as an exact run
    requires."""
    timeout_seconds: PositiveFloat = Field(default=60.0, le=LONGEST_CALL_SECONDS)
    """A request that takes longer has failed and is retried."""
    retries: NonNegativeInt = 4
    """Maximum number of retries after a timeout, a lost connection, a response that is not a chat completion, or a
    status of 408, 409, 425 or 5xx at every endpoint. A status of 429 only asks to wait, and uses up none."""
    backoff_seconds: PositiveFloat = Field(default=1.0, le=LONGEST_CALL_SECONDS)
    """Wait before the first retry, doubled before each further one. A `Retry-After` of an endpoint holds for all requests to
    it."""
    longest_wait_seconds: PositiveFloat = Field(default=60.0, le=LONGEST_CALL_SECONDS)
    """Maximum wait before a retry; an endpoint that asks for a longer one, or to wait again and again for longer, counts as
    unreachable."""
    max_concurrent_requests: PositiveInt = Field(default=8, le=1024)
    """Maximum number of requests in flight at once."""

    fallbacks: tuple[FallbackEndpoint, ...] = ()
    """Other endpoints of the same model. A request that fails at one goes to another at once; the judge is away only if all
    are. The first in order whose circuit is closed and which need not be waited for is asked."""
    requests_per_minute: PositiveInt | None = None
    """Maximum rate of requests to each endpoint, shared by all runs of the home that use it with the same key and model; `null`:
    no limit."""
    tokens_per_minute: PositiveInt | None = None
    """Maximum rate of tokens, read and written, at each endpoint; shared like `requests_per_minute`. `null`: no limit."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The name under which `max_new_tokens` is sent. Newer models of OpenAI refuse `max_tokens`; their
    `max_completion_tokens` includes their hidden thoughts."""
    send_temperature: bool = True
    """Whether `temperature` is sent. `false`, for models that refuse it: the endpoint uses its own, usually 1."""
    prices: TokenPrices | None = None
    """What the endpoint charges, for the metric `endpoints/NAME/cost` and `yatt scores`; `null`: unknown."""

    @model_validator(mode="after")
    def _encrypted(self) -> Self:
        check_encrypted(self.url, self.allow_http)
        return self

    @model_validator(mode="after")
    def _different_fallbacks(self) -> Self:
        urls = [endpoint.url for endpoint in self.endpoints]
        if repeated := [url for number, url in enumerate(urls) if url in urls[:number]]:
            raise ValueError(f"fallbacks: {repeated[0]} is there twice; expected each address once, apart from url")
        return self

    @model_validator(mode="after")
    def _room_for_an_answer(self) -> Self:
        if self.tokens_per_minute is not None and self.tokens_per_minute < self.max_new_tokens:
            raise ValueError(
                f"tokens_per_minute {self.tokens_per_minute} is less than max_new_tokens {self.max_new_tokens}, so that no "
                "answer may be asked for; lower max_new_tokens or raise the limit"
            )
        return self

    @model_validator(mode="after")
    def _temperature_only_if_sent(self) -> Self:
        if not self.send_temperature and self.temperature != 1.0:
            raise ValueError(
                f"temperature {self.temperature:g} has no effect with send_temperature: false; leave temperature out"
            )
        return self

    @property
    def endpoints(self) -> tuple[FallbackEndpoint, ...]:
        """All endpoints, the first one included, in order of preference."""
        first = FallbackEndpoint(url=self.url, credential=self.credential, allow_http=self.allow_http)
        return (first, *self.fallbacks)


def known_placeholders(template: str | None) -> str | None:
    """Returns the template of a reward model. Raises `ValueError` for placeholders that it does not have."""
    if template is not None and fields_of(template) - {PROMPT} != {RESPONSE}:
        raise ValueError("the template must contain {response}, may contain {prompt}, and no other placeholders")
    return template


class RewardModelPart(RewardPartBase):
    """A reward model: a sequence classifier with a single output, applied to prompt and response."""

    kind: Literal["reward_model"] = "reward_model"
    model: GivenModelSpec
    """A local Hugging Face folder for `AutoModelForSequenceClassification` with one label."""
    template: str | None = None
    """Text with the placeholders `{prompt}` and `{response}`; `null`: the tokenizer's chat template, with prompt
    and response as a user and an assistant message."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and computation; exact runs need float32."""
    score: Literal["logit", "sigmoid"] = "logit"
    """`logit`: the output of the head. `sigmoid`: its logistic function, a number from 0 to 1."""
    batch_tokens: PositiveInt = 16_384
    """Maximum number of tokens in a forward pass; a longer response is processed alone."""
    max_tokens: PositiveInt = 4096
    """Maximum length of a prompt with its response; the part fails on a longer one."""
    on_failure: OnFailure = "mask"
    """As for a function."""

    @field_validator("template")
    @classmethod
    def _known_placeholders(cls, template: str | None) -> str | None:
        return known_placeholders(template)

    @property
    def judgements(self) -> int:
        """Always one, because a reward model is deterministic."""
        return 1

    @property
    def aggregate(self) -> Aggregate:
        """Irrelevant, because there is only one judgement."""
        return "mean"

    @property
    def on_unparsed(self) -> Literal["error"]:
        """Irrelevant, because nothing is parsed."""
        return "error"


JudgePart = GenerativePart | EndpointPart | RewardModelPart
"""A reward part whose value comes from a judge."""


def judge_obstacles(part: JudgePart) -> list[str]:
    """Returns the reasons why a run with this judge cannot be exact on any device; empty if it can on some.

    Answers are logged before they are used, so a replay never asks again. However, if the process is killed
    between asking and logging, the question is asked again, whereas an undisturbed run would have used the first
    answer; an endpoint must therefore give the same answer both times.
    """
    place = f"the judge of reward part {part.name!r}"
    match part:
        case EndpointPart():
            return (
                []
                if part.seeded
                else [f"{place} is an endpoint that is not seeded and may answer the same request differently"]
            )
        case RewardModelPart():
            dtype: str = part.dtype
        case GenerativePart(engine=TorchJudge() as engine):
            dtype = engine.dtype
        case GenerativePart():
            return []
    return [] if dtype == "float32" else [f"{place} computes in {dtype}, but exact needs float32"]


def judge_obstacles_on_processors(part: JudgePart) -> list[str]:
    """Returns the reasons why a run with this judge cannot be exact if vLLM computes on processors; empty if it can."""
    if not isinstance(part, GenerativePart) or not isinstance(part.engine, VllmRollout):
        return []
    place = f"the judge of reward part {part.name!r}"
    obstacles = []
    if part.engine.dtype != "float32":
        obstacles.append(f"{place} computes in {part.engine.dtype}, but exact needs float32")
    if part.engine.kv_cache_dtype != "auto":
        obstacles.append(
            f"{place} has the kv_cache_dtype {part.engine.kv_cache_dtype}, but on processors exact needs auto"
        )
    return obstacles
