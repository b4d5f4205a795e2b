"""Judges: reward parts whose value comes from a model, of the run's own or of others."""

from __future__ import annotations

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from yatt_core.spec.base import LONGEST_CALL_SECONDS, SpecModel
from yatt_core.spec.rewards.parsing import ParseSpec, YesNo
from yatt_core.spec.rewards.parts import RewardPartBase
from yatt_core.spec.rewards.template import ANSWER, PROMPT, RESPONSE, fields_of
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.model import ModelConfigFile, ModelFolder, ModelFromConfig, ModelSizes, SftSpec

Aggregate = Literal["mean", "vote", "median", "min", "max"]
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class TrainedJudge(SpecModel):
    """A small model that learns "is this answer right?" before the run starts, from training prompts with reference answers.

    Right is the reference answer; wrong ones are made from it: near misses, permutations, answers to other prompts, noise.
    """

    kind: Literal["trained"] = "trained"
    network: ModelFromConfig = ModelFromConfig(max_positions=256)
    """Its sizes, and its tokenizer, which is trained on filled-in templates."""
    training: SftSpec = SftSpec(
        demonstrations=20_000, batch_size=128, max_steps=2000, stop_accuracy=0.99, probe_every=50
    )
    """How it is trained: `demonstrations` are training prompts, and the accuracy is that on answers to `data.probe` tasks."""

    @field_validator("network")
    @classmethod
    def _text_alone(cls, network: ModelFromConfig) -> ModelFromConfig:
        if network.vision is not None:
            raise ValueError("a judge reads text alone; leave vision out")
        return network


JudgeModel = Annotated[ModelFolder | TrainedJudge | ModelConfigFile | ModelSizes, Field(discriminator="kind")]


class TorchJudge(SpecModel):
    """The rollout engine on plain torch."""

    kind: Literal["torch"] = "torch"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and arithmetic; exact runs need float32."""
    max_num_seqs: PositiveInt = 256
    """Most judgements that an engine makes at once."""


class VirtualJudge(SpecModel):
    """Seeded synthetic judgements that take given durations on a scaled clock; for planning and tests. It needs no model.

    The score is a hash of prompt, response and seed, one of 0.0, 0.1 ... 0.9; `parse` is not asked.
    """

    kind: Literal["virtual"] = "virtual"
    base_seconds: NonNegativeFloat = 0.006
    """Seconds of a decode step, however few its judgements."""
    seconds_per_sequence: NonNegativeFloat = 1.5e-5
    """Seconds that each judgement adds to a decode step."""
    seconds_per_context_token: NonNegativeFloat = 0.0
    """Seconds that each token attended to adds to a decode step; beside engines that batch continuously alone."""
    seconds_per_prompt_token: NonNegativeFloat = 0.0
    """Seconds for each token that is read, once for all judgements of a response."""
    clock_factor: PositiveFloat = 1.0
    """Real seconds are these divided by the factor."""
    median_tokens: PositiveFloat = Field(default=16.0, le=1e9)
    """Median length of a judgement; lengths are log-normal."""
    sigma: NonNegativeFloat = Field(default=0.5, le=5.0)
    """Spread of the lengths' logarithm."""
    max_num_seqs: PositiveInt = 256
    """Most judgements that an engine makes at once."""


JudgeEngineSpec = Annotated[TorchJudge | VirtualJudge | VllmRollout, Field(discriminator="kind")]


class TemplatedPart(RewardPartBase):
    """What judges that write an answer have in common."""

    template: str = Field(min_length=1)
    """What the judge is asked: `{prompt}`, `{response}` and `{answer}` (the reference answer) stand for these, `{{` and `}}`
    for braces. What all questions share belongs in front, where a prefix cache finds it."""
    judgements: int = Field(default=1, ge=1, le=1024)
    """How often each response is judged."""
    temperature: NonNegativeFloat = 1.0
    """Of the sampling of judgements; 0: the likeliest token each time."""
    max_new_tokens: PositiveInt = 16
    """Most tokens of a judgement."""
    parse: ParseSpec = YesNo()
    """How a score is read from a judgement."""
    aggregate: Aggregate = "mean"
    """What becomes of several judgements. `vote`: the score that most of them gave, of those tied the lowest."""
    on_unparsed: Literal["zero", "error"] = "zero"
    """A judgement from which no score can be read counts as 0, or counts as an error of the part."""

    @field_validator("template")
    @classmethod
    def _known_placeholders(cls, template: str) -> str:
        fields = fields_of(template)
        if RESPONSE not in fields:
            raise ValueError("the template does not show the response; write {response} where it belongs")
        if unknown := sorted(fields - {PROMPT, RESPONSE, ANSWER}):
            raise ValueError(
                f"unknown placeholder {{{unknown[0]}}}; known are {{prompt}}, {{response}} and {{answer}}, and a brace is "
                "written {{ or }}"
            )
        return template

    @model_validator(mode="after")
    def _judgements_differ(self) -> Self:
        if self.judgements > 1 and self.temperature == 0.0:
            raise ValueError(
                f"judgements {self.judgements} at temperature 0 would all be the same; write judgements: 1, or a temperature"
            )
        return self


class GenerativePart(TemplatedPart):
    """A judge model of the run's own, behind the protocol of rollout engines."""

    kind: Literal["generative"] = "generative"
    model: JudgeModel | None = None
    """A local Hugging Face folder, or a small model that is trained before the run; for `yatt plan` a config.json or sizes, too.
    A virtual engine has none."""
    engine: JudgeEngineSpec = TorchJudge()

    @model_validator(mode="after")
    def _model_for_its_engine(self) -> Self:
        virtual = isinstance(self.engine, VirtualJudge)
        if virtual and self.model is not None:
            raise ValueError("a virtual engine has no model; leave model out")
        if not virtual and self.model is None:
            raise ValueError("a judge needs a model; write model: {kind: folder, path: ...}, or {kind: trained}")
        if isinstance(self.model, TrainedJudge) and not isinstance(self.parse, YesNo):
            raise ValueError("a trained judge says yes or no; write parse: {kind: yes_no}")
        if isinstance(self.model, TrainedJudge) and self.max_new_tokens >= self.model.network.max_positions:
            raise ValueError(
                f"max_new_tokens {self.max_new_tokens} leaves no room for a question in model.network.max_positions "
                f"{self.model.network.max_positions}"
            )
        return self


class EndpointPart(TemplatedPart):
    """A judge of others, behind an OpenAI-compatible `chat/completions`."""

    kind: Literal["endpoint"] = "endpoint"
    url: str
    """Base address of the API, such as `https://judge.example/v1`; `chat/completions` below it is asked."""
    model: str = Field(min_length=1)
    """Name of the model there."""
    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the environment variable that holds the key; `null`: no key is sent. The key itself never stands in a spec."""
    allow_http: bool = False
    """Let prompts and responses travel unencrypted to another machine."""
    seeded: bool = False
    """The endpoint takes a `seed` and gives the same answer to the same request whenever it is asked; an exact run needs it."""
    timeout_seconds: PositiveFloat = Field(default=60.0, le=LONGEST_CALL_SECONDS)
    """A request that takes longer has failed, and is tried again."""
    retries: NonNegativeInt = 4
    """How often a request is tried again after a timeout, a lost connection, an answer that is no chat completion, or one of
    408, 409, 425, 429 or 5xx."""
    backoff_seconds: PositiveFloat = Field(default=1.0, le=LONGEST_CALL_SECONDS)
    """Wait before the first repetition, doubled before each further one; a longer `Retry-After` of the endpoint wins."""
    longest_wait_seconds: PositiveFloat = Field(default=60.0, le=LONGEST_CALL_SECONDS)
    """No wait is longer; an endpoint that asks for a longer one counts as out of reach."""
    max_concurrent_requests: PositiveInt = Field(default=8, le=1024)
    """Most requests under way at once."""

    @field_validator("url")
    @classmethod
    def _safe_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not _is_host(parts.hostname) or not url.isprintable() or " " in url:
            raise ValueError("write https://host/path")
        if parts.port == 0:  # one that is no number, or too large, is refused as it is read
            raise ValueError("port 0 is none")
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "an address holds no password; put the key into an environment variable and name it: api_key_env"
            )
        if parts.query or parts.fragment:
            raise ValueError("write the base address alone, without ? or #")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _encrypted(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme == "http" and parts.hostname not in LOOPBACK and not self.allow_http:
            raise ValueError(f"url {self.url} is not encrypted; write https://, or allow_http: true")
        return self


class RewardModelPart(RewardPartBase):
    """A reward model: a sequence classification head of one output over prompt and response."""

    kind: Literal["reward_model"] = "reward_model"
    model: ModelFolder
    """A local Hugging Face folder for `AutoModelForSequenceClassification` with one label."""
    template: str | None = None
    """A text in which `{prompt}` and `{response}` stand; `null`: the tokenizer's chat template, as question and answer."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and arithmetic; exact runs need float32."""
    score: Literal["logit", "sigmoid"] = "logit"
    """The head's output, or what the logistic function makes of it: a number from 0 to 1."""
    batch_tokens: PositiveInt = 16_384
    """Most tokens in one forward pass; a longer response goes alone."""
    max_tokens: PositiveInt = 4096
    """A prompt with its response that is longer is an error of the part."""

    @field_validator("template")
    @classmethod
    def _known_placeholders(cls, template: str | None) -> str | None:
        if template is not None and fields_of(template) - {PROMPT} != {RESPONSE}:
            raise ValueError(
                "write {response} where the response belongs, {prompt} where the prompt does, and no others"
            )
        return template

    @property
    def judgements(self) -> int:
        """A reward model says the same each time."""
        return 1

    @property
    def aggregate(self) -> Aggregate:
        """There is one judgement."""
        return "mean"

    @property
    def on_unparsed(self) -> Literal["error"]:
        """There is nothing to parse."""
        return "error"


def _is_host(name: str | None) -> bool:
    """Whether a name can be looked up: none of its labels is empty or too long."""
    try:
        return bool(name and name.encode("idna"))
    except UnicodeError:
        return False


JudgePart = GenerativePart | EndpointPart | RewardModelPart
"""A reward part whose value comes from a judge."""


def judge_obstacles(part: JudgePart) -> list[str]:
    """What keeps a run with this judge from being exact, in words; empty for nothing.

    Answers are logged before they are used, so that a replay never asks again. But a kill between question and log does,
    and a run that was never touched would have got the first answer: an endpoint has to give it twice.
    """
    place = f"the judge of reward part {part.name!r}"
    match part:
        case EndpointPart():
            return (
                []
                if part.seeded
                else [f"{place} is an endpoint that is not seeded: asked again it may answer otherwise"]
            )
        case RewardModelPart():
            dtype: str = part.dtype
        case GenerativePart():
            dtype = "float32" if isinstance(part.engine, VirtualJudge) else part.engine.dtype
    return [] if dtype == "float32" else [f"{place} computes in {dtype}, exact needs float32"]


def is_trained(part: JudgePart) -> bool:
    """Whether its model is made as part of the run."""
    return isinstance(part, GenerativePart) and isinstance(part.model, TrainedJudge)
