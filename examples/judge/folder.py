"""Writes the judge of a spec as a Hugging Face folder: a tokenizer for its questions, and a trained network.

Consumes a spec: its data, its seed and the reward part of the judge. Produces the folder that the part names, complete
or not at all. The same spec always gives the same bytes.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from examples.judge.recipe import NETWORK, TRAINING
from examples.judge.training import JudgeFacts, Report, train_judge
from yatt_core.datasets.sources import Collection, collect_prompts
from yatt_core.durable import refusals
from yatt_core.errors import ConfigurationError
from yatt_core.keys import stable_seed
from yatt_core.models.model_folder import make_model
from yatt_core.models.tokenizer import save_tokenizer, train_tokenizer
from yatt_core.prompts.stream import Prompt, apportion
from yatt_core.prompts.tool_calls import last_turn
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.judges import GenerativePart
from yatt_core.spec.rewards.parsing import YesNo
from yatt_core.spec.sections.model import MOST_DEMONSTRATIONS, ModelFolder, ModelFromConfig, SftSpec
from yatt_core.spec.template import PROMPT, RESPONSE, pieces_of


def make_judge(
    spec: RunSpec,
    network: ModelFromConfig = NETWORK,
    training: SftSpec = TRAINING,
    report: Report = lambda step, accuracy: None,
) -> JudgeFacts:
    """Trains the judge of a spec and writes it to `model.path` of its reward part.

    Raises `ConfigurationError` for a spec whose judge cannot be trained here and for a folder that exists, `DataError`
    for prompts that a judge cannot learn from, and what `collect_prompts` raises.
    """
    part, folder = judge_of(spec)
    key = f"rewards.parts {part.name!r}: model.path"
    if folder.exists():
        raise ConfigurationError(f"{key}: {folder} already exists; expected a new folder: remove it or name another")
    collection = collect_prompts(spec.data, spec.seed)
    shares = apportion(training.demonstrations or MOST_DEMONSTRATIONS, [source.weight for source in spec.data.sources])
    prompts = [
        prompt
        for source, share in zip(collection.train, shares, strict=True)
        for prompt in itertools.islice(source, share)
    ]
    tokenizer = _tokenizer(part, network, prompts, collection)
    seed = stable_seed(f"judge {part.name}", spec.seed)
    with refusals(f"{key}: {folder} cannot be written"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            made = Path(temporary) / folder.name
            made.mkdir()
            save_tokenizer(tokenizer, made, network.max_positions)
            make_model(network, tokenizer.get_vocab_size(), seed, made)
            facts = train_judge(
                part,
                training,
                seed,
                prompts=prompts,
                probe=collection.probe,
                folder=made,
                report=report,
            )
            made.rename(folder)
    return facts


def judge_of(spec: RunSpec) -> tuple[GenerativePart, Path]:
    """Returns the reward part of a spec's judge, and the folder of its model.

    Raises `ConfigurationError` unless there is exactly one, and it asks in a form that can be learned here.
    """
    found = [
        (part, Path(part.model.path))
        for part in spec.rewards.judges
        if isinstance(part, GenerativePart) and isinstance(part.model, ModelFolder)
    ]
    if len(found) != 1:
        raise ConfigurationError(
            "rewards.parts: expected one part of kind generative with model: {kind: folder, path: ...} "
            f"(found: {', '.join(part.name for part, _ in found) or 'none'})"
        )
    ((part, folder),) = found
    key = f"rewards.parts {part.name!r}"
    pieces = list(pieces_of(part.template))
    if not isinstance(part.parse, YesNo):
        raise ConfigurationError(f"{key}: parse.kind: this judge answers yes or no; expected yes_no")
    if pieces[-1][1] != RESPONSE or PROMPT not in (name for _, name in pieces):
        raise ConfigurationError(
            f"{key}: template: expected a text that contains {{prompt}} and ends with {{response}}"
        )
    if spec.data.probe == 0:
        raise ConfigurationError("data.probe: probe accuracy determines when training stops; expected 1 or more")
    return part, folder


def _tokenizer(
    part: GenerativePart, network: ModelFromConfig, prompts: Sequence[Prompt], collection: Collection
) -> Tokenizer:
    """Returns a tokenizer that knows every character of the data.

    The template's own texts and the judge's two answers are single tokens.
    """
    assert isinstance(part.parse, YesNo)
    literals = [text for text, _ in pieces_of(part.template)]
    everything = itertools.chain(*collection.train, collection.probe)
    answers = (last_turn(prompt.answer or "") for prompt in prompts)
    others = itertools.chain(answers, literals, (prompt.text for prompt in everything))
    tokenizer = train_tokenizer(network.tokenizer, [prompt.text for prompt in prompts], others)
    whole = (text for text in (part.parse.yes[0], part.parse.no[0], *literals) if len(text) > 1)
    tokenizer.add_tokens([AddedToken(text, single_word=True) for text in whole])
    return tokenizer
