"""Which metrics are drawn together, and what each picture tells. Consumes the metrics that a run has; produces `Chart`s."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

BUCKETS = 300


@dataclass(frozen=True, slots=True)
class Drawn:
    """Metrics that share a picture. names: what each is called in it. meaning: what a person should see in it."""

    title: str
    meaning: str
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a browser gets series from (`/api/v1/runs/{run}/series`), and what it calls them, by key."""

    url: str
    names: dict[str, str]


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture on a page."""

    title: str
    meaning: str
    sources: tuple[Source, ...]


LEARNING = (
    Drawn("Reward", "of the training prompts", (("reward/mean", "mean"), ("reward/std", "deviation"))),
    Drawn(
        "Accuracy",
        "share that is right",
        (("evaluation/accuracy", "held out"), ("accuracy", "training prompts")),
    ),
    Drawn(
        "KL",
        "distance from the first or the teacher's weights, nats a token",
        (("kl", "reference"), ("distillation_kl", "teacher")),
    ),
    Drawn("Entropy", "falls to 0 when exploration ends, nats a token", (("entropy", "entropy"),)),
    Drawn("Response length", "tokens; watch it against the reward", (("length/response_mean", "mean"),)),
    Drawn(
        "Fractions of samples",
        "cut off, or teaching nothing",
        (("truncated_fraction", "cut"), ("zero_spread_fraction", "no spread")),
    ),
    Drawn(
        "Clip fraction",
        "tokens whose step was clipped",
        (("clip_fraction", "policy"), ("value_clip_fraction", "value")),
    ),
    Drawn("Probability ratio", "new over old, its extremes", (("ratio_max", "highest"), ("ratio_min", "lowest"))),
    Drawn("Gradient norm", "before clipping", (("grad_norm", "policy"), ("value_grad_norm", "value"))),
    Drawn(
        "Trainer against sampler",
        "gap of their log-probabilities; grows when engines disagree",
        (("train_rollout_logprob_diff_mean", "mean"), ("train_rollout_logprob_diff_max", "highest")),
    ),
    Drawn(
        "Loss", "mean over the optimizer steps", (("loss", "all"), ("policy_loss", "policy"), ("value_loss", "value"))
    ),
    Drawn("Dynamic sampling", "share of drawn prompts that teach", (("sampling/valid_fraction", "valid"),)),
)
THROUGHPUT = (
    Drawn("Tokens a second", "of the policy, over the whole iteration", (("tokens_per_second", "tokens"),)),
    Drawn(
        "Seconds by phase",
        "of an iteration",
        tuple((f"seconds/{name}", name) for name in ("collect", "prepare", "learn", "sync", "evaluate", "checkpoint")),
    ),
    Drawn("Seconds an iteration", "from commit to commit", (("seconds/iteration", "iteration"),)),
)
COMPARED = ("reward/mean", "evaluation/accuracy", "kl", "entropy", "length/response_mean", "tokens_per_second")


def charts_of(run: str, drawn: Iterable[Drawn]) -> list[Chart]:
    """The pictures of a run, which a browser shows once they have points."""
    return [
        Chart(each.title, each.meaning, (Source(series_url(run, [key for key, _ in each.names]), dict(each.names)),))
        for each in drawn
    ]


def compared_charts(runs: Sequence[str], known: Collection[str]) -> list[Chart]:
    """A picture for each compared metric, with a line for each run."""
    titles = {key: drawn.title for drawn in (*LEARNING, *THROUGHPUT) for key, _ in drawn.names}
    return [
        Chart(titles[key], key, tuple(Source(series_url(run, [key]), {key: run}) for run in runs))
        for key in COMPARED
        if key in known
    ]


def series_url(run: str, keys: Sequence[str]) -> str:
    """Address of some series of a run."""
    query = urlencode([*(("key", key) for key in keys), ("buckets", BUCKETS)])
    return f"/api/v1/runs/{quote(run, safe='')}/series?{query}"
