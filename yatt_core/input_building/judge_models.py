"""The judges' models among a run's inputs: trained ones are created and trained, given folders are recorded.
Consumes the spec and the prompts in the inputs' folder. Produces `judges/NAME/` for each trained judge, and the
manifest's entries about all judges with a model. It runs before the inputs' folder is renamed into place, so
that nothing incomplete is ever used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.inputs.identity import judge_model_of
from yatt_core.inputs.manifest import JUDGES, Facts
from yatt_core.judges.codec import open_judge_codec
from yatt_core.keys import stable_seed
from yatt_core.models.model_folder import check_model_folder, check_model_unchanged, describe_model, make_model
from yatt_core.models.reward_folder import open_reward_tokenizer
from yatt_core.models.tokenizer import save_tokenizer, train_tokenizer
from yatt_core.prompts.prompt_files import PromptFile
from yatt_core.prompts.stream import Prompt, apportion
from yatt_core.prompts.tool_calls import last_turn
from yatt_core.spec.rewards.judges import EndpointPart, GenerativePart, RewardModelPart, TrainedJudge
from yatt_core.spec.rewards.parsing import YesNo
from yatt_core.spec.rewards.template import pieces_of
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.model import ModelFolder


def make_judges(spec: RunSpec, folder: Path, prompts: JudgePrompts) -> Facts:
    """Builds the judges' models below the inputs' folder; returns the manifest's entries about them.
    Raises `ConfigurationError` for folders that cannot be used, and `DataError` for prompts that a judge cannot
    learn from.
    """
    facts: Facts = {}
    for part in spec.rewards.judges:
        model = judge_model_of(part)
        if isinstance(part, GenerativePart) and isinstance(model, TrainedJudge):
            path = f"{JUDGES}/{part.name}"
            facts[part.name] = {"path": path, **_train(spec, part, model, folder / path, prompts)}
        elif isinstance(model, ModelFolder):
            with _naming(part.name):
                described = describe_model(Path(model.path).resolve())
            facts[part.name] = {"path": described.model_path, "files": dict(described.model_files)}
    return facts


def check_judges(manifest: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` if a given folder has changed since the inputs were built."""
    for name, made in manifest.get(JUDGES, {}).items():
        if "files" in made:
            with _naming(name):
                check_model_unchanged(Path(made["path"]), made["files"])


def check_before_start(spec: RunSpec) -> None:
    """Raises `ConfigurationError` for a judge whose folder is not a model, or whose API key is not set."""
    from yatt_core.judges.endpoint import EndpointJudge

    for part in spec.rewards.judges:
        if isinstance(part, EndpointPart):
            EndpointJudge(part)  # sends no request yet
        elif isinstance(model := judge_model_of(part), ModelFolder):
            with _naming(part.name):
                check_model_folder(Path(model.path))
                if isinstance(part, GenerativePart):
                    open_judge_codec(model.path, part.template, part.max_new_tokens)
                elif isinstance(part, RewardModelPart):
                    open_reward_tokenizer(part, model.path)


@contextmanager
def _naming(part: str) -> Iterator[None]:
    """Adds the name of the reward part to errors."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"rewards.parts {part!r}: {error}") from None
    except OSError as error:
        raise ConfigurationError(
            f"rewards.parts {part!r}: model.path: {error.filename} cannot be read: {error.strerror}"
        ) from None


@dataclass(frozen=True, slots=True)
class JudgePrompts:
    """Files of the inputs.
    train: training prompts, source after source.
    train_sizes: number of training prompts per source.
    probe: the tasks that determine when training stops.
    """

    train: PromptFile
    train_sizes: Sequence[int]
    probe: PromptFile

    def first(self, count: int, weights: Sequence[float]) -> list[Prompt]:
        """Returns the first training prompts of each source, at most its share of `count`."""
        starts = [0, *itertools.accumulate(self.train_sizes)]
        return [
            self.train[starts[source] + index]
            for source, share in enumerate(apportion(count, weights))
            for index in range(min(share, self.train_sizes[source]))
        ]


def _train(spec: RunSpec, part: GenerativePart, model: TrainedJudge, folder: Path, given: JudgePrompts) -> Facts:
    """Creates a judge and its tokenizer in a new folder and trains it.
    The literal texts of the template and the judge's two answers are single tokens.
    """
    from yatt_core.input_building.judge_training import train_judge

    weights = [source.weight for source in spec.data.sources]
    prompts = given.first(model.training.demonstrations, weights)
    assert isinstance(part.parse, YesNo)
    words = (part.parse.yes[0], part.parse.no[0])
    literals = [text for text, _ in pieces_of(part.template)]
    texts = [prompt.text for prompt in prompts]
    answers = (last_turn(prompt.answer or "") for prompt in prompts)
    others = itertools.chain(answers, literals, given.train.column("text"), given.probe.column("text"))
    phrases = [text for text in (*words, *literals) if len(text) > 1]
    tokenizer = train_tokenizer(model.network.tokenizer, texts, others, phrases=phrases)
    folder.mkdir(parents=True)
    save_tokenizer(tokenizer, folder, model.network.max_positions)
    seed = stable_seed(f"judge {part.name}", spec.seed)
    make_model(model.network, tokenizer.get_vocab_size(), seed, folder)
    return asdict(train_judge(part, model.training, seed, prompts, list(given.probe), folder))
