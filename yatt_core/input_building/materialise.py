"""What a run starts from, built once and kept in its folder: prompts, tokenizer, initial model.

Consumes a spec. Produces `inputs/` in the run folder: train, held-out and probe prompts as Parquet, their
images by content address, the Hugging Face folder of a model created from a config, and, written last, the
manifest with the SHA-256 of every file. The folder appears complete or not at all. A complete one is verified and
reused, so that later changes of a source never affect a run. Prompts are written as they are read; a corpus is
never held in memory.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import shutil
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from yatt_core.datasets.own_rows import open_sources
from yatt_core.datasets.sources import collect_prompts, normalise, rows_left_out
from yatt_core.digests import canonical_json, chain_digest, file_sha256
from yatt_core.durable import make_folder, refusals, sync_file, sync_folder, write_json
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.input_building.answers import check_answers
from yatt_core.input_building.bounds_ahead import BoundsAhead, bounds_ahead
from yatt_core.input_building.engine_check import check_reach
from yatt_core.input_building.fitting import check_longest, check_prompts
from yatt_core.input_building.given_models import check_given, describe_given
from yatt_core.input_building.judge_models import check_judges, describe_judges
from yatt_core.input_building.over_long import fit_prompts
from yatt_core.input_building.pools import write_pools
from yatt_core.inputs.demonstrations import fitting_shares
from yatt_core.inputs.identity import identity
from yatt_core.inputs.manifest import (
    DEMONSTRATIONS,
    GIVEN,
    HELD_OUT,
    INPUTS,
    JUDGES,
    LONGEST,
    MANIFEST,
    MODEL,
    OVER_LONG,
    PROBE,
    TRAIN,
    model_path_of,
    read_manifest,
)
from yatt_core.inputs.pools import prompt_pools
from yatt_core.inputs.reader import Inputs
from yatt_core.models.model_folder import (
    ModelFacts,
    check_model_unchanged,
    count_parameters,
    describe_model,
    make_model,
)
from yatt_core.models.tokenizer import save_tokenizer, train_tokenizer
from yatt_core.problems import Problems
from yatt_core.prompts.call_syntaxes import CALL
from yatt_core.prompts.codec import TextCodec, open_codec
from yatt_core.prompts.media import MEDIA, MediaFolder, describe_media
from yatt_core.prompts.prompt_files import PromptFile, PromptWriter, plain_parts, read_column
from yatt_core.prompts.rows import encode_demonstration, responses_of
from yatt_core.prompts.stream import Prompt, apportion
from yatt_core.prompts.tool_calls import split_turns
from yatt_core.protocols.receipts import InputsReceipt
from yatt_core.spec.availability import unavailable
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.model import GivenFolder, ModelFromConfig
from yatt_core.spec.sections.rollout import VirtualRollout

_LOGGER = logging.getLogger(__name__)
LEFT_OUT = "left_out"
"""The manifest's entry with a line for each source of whose rows some are not trained on; missing if there are none."""
Bounds = Mapping[int, int | None]
"""Bounds on the tokens of training prompts, by number; None for a prompt without a sure one."""


def materialise(spec: RunSpec, run_folder: Path) -> InputsReceipt:
    """Builds the run's inputs, or verifies existing ones. Only one process at a time, the run's owner, may call it.

    Raises `ConfigurationError` for sources, tasks or models that cannot be used or that differ from those for
    which the inputs were built, and `DataError` for rows that cannot be used, prompts that do not fit and
    damaged inputs.
    """
    folder = run_folder / INPUTS
    if not folder.exists():
        with refusals(f"{folder}: cannot be created"):
            _make(spec, run_folder, folder)
    sync_folder(run_folder)  # also for an existing folder: the process that renamed it may have died before syncing
    manifest = read_manifest(folder, spec)
    for name, sha256 in manifest["files"].items():
        if not (folder / name).is_file() or file_sha256(folder / name) != sha256:
            raise DataError(f"{folder / name} is missing or damaged; restore it, or start a new run")
    check_media_list(folder, manifest)
    _check_given_model(spec, manifest)
    check_judges(manifest)
    check_given(spec, manifest)
    model_path = model_path_of(folder, manifest)
    check_longest(spec, model_path, manifest)
    if spec.sft is not None:
        Inputs.open(folder, spec).demonstrations(spec.sft.demonstrations)
    return InputsReceipt(
        folder=INPUTS,
        model_path=model_path,
        manifest_sha256=file_sha256(folder / MANIFEST),
        **{
            name: manifest[name]
            for name in ("data_digest", "held_out_prompts", "probe_prompts", "vocabulary", "parameters")
        },
        train_prompts=sum(manifest["train_sizes"]),
        over_long=manifest.get(OVER_LONG, 0),
        left_out=tuple(manifest.get(LEFT_OUT, ())),
        pools=prompt_pools(spec.data, manifest),
    )


def initial_model(spec: RunSpec, run_folder: Path) -> str:
    """Returns the folder of the model with which a run started; empty for a run on virtual engines.

    Raises what `read_manifest` raises, and `ConfigurationError` if a given folder has changed since.
    """
    folder = run_folder / INPUTS
    manifest = read_manifest(folder, spec)
    _check_given_model(spec, manifest)
    return model_path_of(folder, manifest)


def check_prompt_lengths(spec: RunSpec, run_folder: Path) -> None:
    """Raises `ConfigurationError` if a changed spec has no room for the prompts of a run's inputs.

    Inputs that are not built yet pass.
    """
    folder = run_folder / INPUTS
    if (folder / MANIFEST).exists():
        manifest = read_manifest(folder, spec)
        check_longest(spec, model_path_of(folder, manifest), manifest)


def check_media_list(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raises `DataError` unless the images of the inputs match the manifest in number and name.

    Their bytes are checked when they are used: `media.read_media`.
    """
    recorded = manifest.get(MEDIA)
    if recorded is not None and (found := describe_media(folder)) != recorded:
        raise DataError(
            f"{folder / MEDIA} holds {found['images']} images that are not the {recorded['images']} images of the "
            "run's inputs; restore them, or start a new run"
        )


def _make(spec: RunSpec, run_folder: Path, folder: Path) -> None:
    """Writes everything to a temporary folder, the manifest last, syncs it and renames it into place."""
    open_sources(spec.data, run_folder)
    make_folder(run_folder)
    temporary = run_folder / f".{INPUTS}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        facts, bounds = _write_prompts(spec, temporary)
        model = _initial_model(spec, temporary)
        facts |= _check(
            spec=spec,
            run_folder=run_folder,
            folder=temporary,
            model_path=str(temporary / model.model_path),
            train_sizes=facts["train_sizes"],
            bounds=bounds,
        )
        facts |= write_pools(spec.data, temporary)
        if judges := describe_judges(spec):
            facts[JUDGES] = judges
        if given := describe_given(spec, temporary / model.model_path):
            facts[GIVEN] = given
        files = _files(temporary)
        for path in files:
            sync_file(path)
        if spec.data.has_images:
            facts[MEDIA] = describe_media(temporary)
        manifest = {
            "identity": identity(spec),
            "files": {path.relative_to(temporary).as_posix(): file_sha256(path) for path in files},
            **facts,
            **asdict(model),
        }
        for below, _, _ in os.walk(temporary, topdown=False):
            sync_folder(Path(below))
        write_json(temporary / MANIFEST, manifest)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_prompts(spec: RunSpec, folder: Path) -> tuple[dict[str, Any], Bounds]:
    """Writes all prompts and their images; returns the manifest's entries about them, and bounds of training prompts."""
    ahead = bounds_ahead(spec)
    try:
        facts = _write_collection(spec, folder, ahead)
        return facts, {} if ahead is None else dict(ahead.bounds)
    finally:
        if ahead is not None:
            ahead.close()


def _write_collection(spec: RunSpec, folder: Path, ahead: BoundsAhead | None) -> dict[str, Any]:
    collection = collect_prompts(spec.data, spec.seed, MediaFolder(folder).keep, with_probe=spec.sft is not None)
    train_sizes = [0] * len(collection.train)

    def counted() -> Iterator[Prompt]:
        for prompt in itertools.chain.from_iterable(collection.train):
            train_sizes[prompt.source] += 1
            yield prompt

    training = counted() if ahead is None else ahead.passing(counted())
    parts = ((TRAIN, training), (HELD_OUT, collection.held_out), (PROBE, collection.probe))
    digests = (_written(folder / name, prompts, spec.data.has_images) for name, prompts in parts)
    data_digest = chain_digest(itertools.chain.from_iterable(digests))
    left_out = list(rows_left_out(spec.data, collection))
    for line in left_out:
        _LOGGER.warning("%s", line)
    return {
        **({LEFT_OUT: left_out} if left_out else {}),
        "data_digest": data_digest,
        "train_sizes": train_sizes,
        "held_out_prompts": len(collection.held_out),
        "probe_prompts": len(collection.probe),
    }


def _check(
    spec: RunSpec, run_folder: Path, folder: Path, model_path: str, train_sizes: Sequence[int], bounds: Bounds
) -> dict[str, Any]:
    """Checks prompts, reference answers and demonstrations; returns the manifest's entries that follow from it.

    Raises what is wrong with any of them as one error.
    """
    codec = open_codec(spec, model_path, roomless=spec.data.over_long == "refuse")
    problems = Problems()
    facts: dict[str, Any] = {"train_sizes": list(train_sizes)}
    with problems.noting():
        if spec.data.over_long != "refuse":
            facts |= _fit(spec=spec, codec=codec, model_path=model_path, folder=folder, bounds=bounds)
        else:
            prompts = (PromptFile(folder / name) for name in (TRAIN, HELD_OUT, PROBE))
            facts[LONGEST] = check_prompts(spec=spec, codec=codec, model_path=model_path, files=prompts, known=bounds)
    if LONGEST in facts and not spec.virtual:
        with problems.noting():
            check_reach(spec, model_path, facts[LONGEST]["tokens"])
    if spec.samples_responses:
        with problems.noting():
            check_answers(
                spec=spec,
                run_folder=run_folder,
                codec=codec,
                train=PromptFile(folder / TRAIN),
                train_sizes=facts["train_sizes"],
            )
    problems.raise_any()
    if spec.sft is not None:
        _check_demonstrations(spec, codec, PromptFile(folder / TRAIN), facts["train_sizes"])
    if spec.sft is not None and spec.sft.demonstrations is None:
        weights = [source.weight for source in spec.data.sources]
        facts[DEMONSTRATIONS] = list(fitting_shares(weights, facts["train_sizes"]))
    return facts


def _check_demonstrations(spec: RunSpec, codec: TextCodec, train: PromptFile, sizes: Sequence[int]) -> None:
    """Raises `DataError` for a demonstration that the chat template does not render as it is generated."""
    assert spec.sft is not None
    weights = [source.weight for source in spec.data.sources]
    count = spec.sft.demonstrations
    shares = fitting_shares(weights, sizes) if count is None else apportion(count, weights)
    start = 0
    for size, share in zip(sizes, shares, strict=True):
        for row in range(start, start + min(size, share)):
            if train[row].answer is not None:  # the lack of an answer is told for all demonstrations together
                encode_demonstration(train[row], codec, several_turns=spec.rollout.tools is not None)
        start += size


def _fit(spec: RunSpec, codec: TextCodec, model_path: str, folder: Path, bounds: Bounds) -> dict[str, Any]:
    """Leaves out or cuts prompts that are too long; returns the manifest's entries that follow from it."""
    held_out = fit_prompts(spec, codec, model_path, folder / HELD_OUT)
    texts = frozenset(normalise(prompt.text) for prompt in PromptFile(folder / HELD_OUT))
    train = fit_prompts(spec, codec, model_path, folder / TRAIN, held_out=texts, known=bounds)
    probe = fit_prompts(spec, codec, model_path, folder / PROBE, held_out=texts)
    digests = (
        _row_digest(name, prompt, canonical_json(prompt.entry))
        for name in (TRAIN, HELD_OUT, PROBE)
        for prompt in PromptFile(folder / name)
    )
    return {
        "data_digest": chain_digest(digests),
        "train_sizes": list(train.sizes),
        "held_out_prompts": sum(held_out.sizes),
        "probe_prompts": sum(probe.sizes),
        OVER_LONG: train.affected + held_out.affected + probe.affected,
        LONGEST: max((train.longest, held_out.longest, probe.longest), key=lambda longest: int(longest["tokens"])),
    }


def _written(path: Path, prompts: Iterable[Prompt], with_media: bool) -> Iterator[str]:
    """Writes a file of prompts; yields the digest of each prompt as it is written."""
    with PromptWriter(path, with_media) as writer:
        for prompt in prompts:
            yield _row_digest(path.name, prompt, writer.add(prompt))


def _check_given_model(spec: RunSpec, manifest: Mapping[str, Any]) -> None:
    if isinstance(spec.model, GivenFolder) and not spec.virtual:
        check_model_unchanged(Path(manifest["model_path"]), manifest["model_files"])


def _files(folder: Path) -> list[Path]:
    """Returns all files except the images, which are synced as they are written and verified together."""
    tops = (top for top in folder.iterdir() if top.name != MEDIA)
    return sorted(path for top in tops for path in (top, *top.rglob("*")) if path.is_file())


def _initial_model(spec: RunSpec, folder: Path) -> ModelFacts:
    """Returns the facts of the initial model.

    If the spec says so, creates the model below the inputs' folder, with a tokenizer trained on the prompts
    there.
    """
    if isinstance(spec.rollout.engine, VirtualRollout):
        return ModelFacts("", {}, spec.rollout.engine.vocabulary, 0)
    if isinstance(spec.model, GivenFolder):
        return describe_model(Path(spec.model.path).resolve())
    if not isinstance(spec.model, ModelFromConfig):
        raise ConfigurationError("\n".join(unavailable(spec)))
    files = [PromptFile(folder / name) for name in (TRAIN, PROBE)]
    with_tools = spec.rollout.tools is not None
    if spec.samples_responses:
        answers = (answer for file in files for answer in file.column("answer") if answer is not None)
    else:
        answers = (text for file in files for prompt in file for text in responses_of(spec, prompt).texts)
    others = itertools.chain(answers, [spec.data.system_prompt or "", string.printable if with_tools else ""])
    texts = _Texts(files, with_tools)
    tokenizer = train_tokenizer(spec.model.tokenizer, texts, others, with_images=spec.model.vision is not None)
    vocabulary: int = tokenizer.get_vocab_size()
    (folder / MODEL).mkdir()
    save_tokenizer(tokenizer, folder / MODEL, spec.model.max_positions)
    make_model(spec.model, vocabulary, spec.seed, folder / MODEL)
    return ModelFacts(MODEL, {}, vocabulary, count_parameters(folder / MODEL))


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts of the prompts in some files, read again on every iteration.

    with_tools: adds the turns of answers that call tools.
    """

    files: Sequence[PromptFile]
    with_tools: bool

    def __iter__(self) -> Iterator[str]:
        for file in self.files:
            for text, messages in zip(file.column("text"), file.column("messages"), strict=True):
                turns = read_column(messages)
                yield from (turn.content for turn in turns) if turns else (text,)
        for answer in self._answers() if self.with_tools else ():
            if answer is not None and CALL in answer:
                yield from split_turns(answer)[0]

    def _answers(self) -> Iterator[str | None]:
        return itertools.chain.from_iterable(file.column("answer") for file in self.files)


def _row_digest(part: str, prompt: Prompt, entry: str) -> str:
    """Returns the digest of a prompt: of a list of its parts as canonical JSON.

    entry: the canonical JSON of the prompt's entry, which is the longest part and is written as well.
    """
    head = canonical_json([part, prompt.source, prompt.index, prompt.prompt_id, prompt.text, prompt.answer])
    tail: list[Any] = []
    if prompt.messages:
        tail.append({"messages": [message.plain() for message in prompt.messages]})
    if parts := plain_parts(prompt):
        tail.append(parts)
    if prompt.media:
        tail.append(list(prompt.media))
    rest = "".join(f",{canonical_json(each)}" for each in tail)
    return hashlib.sha256(f"{head[:-1]},{entry}{rest}]".encode()).hexdigest()
