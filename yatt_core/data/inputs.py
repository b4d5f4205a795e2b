"""What a run starts from, made once and kept in its folder: prompts, tokenizer, initial model.

Consumes a spec; produces `inputs/` in the run folder: train, held-out and probe prompts as Parquet, for a model made from a
config its Hugging Face folder, and last the manifest with the sha256 of every file. The folder appears whole or not at all;
a complete one is verified and used again, so that later changes of a source never reach a run. `Inputs` reads it.
"""

from __future__ import annotations

import json
import shutil
import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from yatt_core.data.model_folder import ModelFacts, check_model_unchanged, count_parameters, describe_model, make_model
from yatt_core.data.prompts import Prompt, apportion, epoch_order, locate
from yatt_core.data.sources import Collection, collect_prompts
from yatt_core.data.tokenizer import save_tokenizer, train_tokenizer
from yatt_core.digests import canonical_json, chain_digest, file_sha256, json_digest
from yatt_core.durable import make_folder, refusals, sync_file, sync_folder, write_json
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.receipts import InputsReceipt, PromptRef
from yatt_core.spec.model import ModelFolder
from yatt_core.spec.rollout import VirtualRollout
from yatt_core.spec.run import RunSpec
from yatt_core.tools.calls import CALL, split_turns

INPUTS, MANIFEST, MODEL = "inputs", "manifest.json", "model"
TRAIN, HELD_OUT, PROBE = "train.parquet", "held_out.parquet", "probe.parquet"
SCHEMA = pa.schema(
    [
        pa.field("source", pa.int32(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("prompt_id", pa.large_string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("answer", pa.large_string()),
        pa.field("entry", pa.large_string(), nullable=False),
    ]
)


def materialise(spec: RunSpec, run_folder: Path) -> InputsReceipt:
    """Makes the run's inputs, or verifies those that are there. Meant for one process at a time, the run's owner.

    Raises `ConfigurationError` for sources, tasks or models that cannot be used or that differ from those the inputs were
    made for, `DataError` for rows that cannot be used and for inputs that are damaged.
    """
    folder = run_folder / INPUTS
    if not folder.exists():
        with refusals(f"{folder}: cannot be made"):
            _make(spec, run_folder, folder)
    sync_folder(run_folder)  # also for a folder that is there: who renamed it may have died before this
    manifest = read_manifest(folder, spec)
    for name, sha256 in manifest["files"].items():
        if not (folder / name).is_file() or file_sha256(folder / name) != sha256:
            raise DataError(f"{folder / name} is missing or damaged; put it back, or start a new run")
    if isinstance(spec.model, ModelFolder) and not spec.virtual:
        check_model_unchanged(Path(manifest["model_path"]), manifest["model_files"])
    if spec.warmup is not None:
        Inputs.open(folder, spec).demonstrations(spec.warmup.demonstrations)
    return InputsReceipt(
        folder=INPUTS,
        model_path=str((folder / manifest["model_path"]).resolve()) if manifest["model_path"] else "",
        manifest_sha256=file_sha256(folder / MANIFEST),
        **{
            name: manifest[name]
            for name in ("data_digest", "held_out_prompts", "probe_prompts", "vocabulary", "parameters")
        },
        train_prompts=sum(manifest["train_sizes"]),
    )


def read_manifest(folder: Path, spec: RunSpec) -> dict[str, Any]:
    """The manifest of a run's inputs.

    Raises `DataError` if it cannot be read, `ConfigurationError` if the inputs were made for other data.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}; put it back, or start a new run") from None
    if manifest.get("identity") != identity(spec):
        raise ConfigurationError(
            f"{folder}: the run's inputs were made for another seed, model or set of sources; "
            "these stay as they are within a run, start a new one"
        )
    return manifest


def identity(spec: RunSpec) -> str:
    """Digest of all in a spec that its inputs depend on; the rest may change within a run."""
    data = spec.data.model_dump(mode="json", include={"sources", "held_out", "probe", "system_prompt"})
    model = None if spec.virtual else spec.model.model_dump(mode="json")
    # A tokenizer of the run's own knows what calls and results are written with.
    tools = {} if spec.rollout.tools is None or model is None else {"tools": True}
    return json_digest({"seed": spec.seed, "data": data, "model": model, **tools})


class Inputs:
    """A run's prompts, read from its inputs folder."""

    def __init__(self, folder: Path, spec: RunSpec, manifest: Mapping[str, Any]) -> None:
        self._folder = folder
        self._seed = spec.seed
        self._weights = [source.weight for source in spec.data.sources]
        self.train_sizes: tuple[int, ...] = tuple(manifest["train_sizes"])
        self._starts = np.concatenate([[0], np.cumsum(self.train_sizes)])
        self._train = _read_table(folder / TRAIN)
        self._orders: dict[int, tuple[int, npt.NDArray[np.int64]]] = {}

    @classmethod
    def open(cls, folder: Path, spec: RunSpec) -> Inputs:
        """Reads what `materialise` made and verified. Raises as `read_manifest`."""
        return cls(folder, spec, read_manifest(folder, spec))

    def prompt(self, reference: PromptRef) -> Prompt:
        """The prompt that a reference stands for."""
        epoch, place = locate(reference.position, self.train_sizes[reference.source])
        return self._training_prompt(reference.source, int(self._order(reference.source, epoch)[place]))

    @cached_property
    def held_out(self) -> Sequence[Prompt]:
        """The tasks for evaluation, in a fixed order."""
        return _read_prompts(_read_table(self._folder / HELD_OUT))

    @cached_property
    def probe(self) -> Sequence[Prompt]:
        """The training-side tasks that tell the warm-up when to stop."""
        return _read_prompts(_read_table(self._folder / PROBE))

    def demonstrations(self, count: int) -> Sequence[Prompt]:
        """Training prompts with a reference answer, the first of each source, shared out by weight.

        Raises `ConfigurationError` when a source has too few, or one without an answer.
        """
        prompts = []
        for source, share in enumerate(apportion(count, self._weights)):
            if share > self.train_sizes[source]:
                raise ConfigurationError(
                    f"warmup.demonstrations: {share} of {count} are to come from data.sources.{source}, "
                    f"which has {self.train_sizes[source]} training prompts"
                )
            prompts += [self._training_prompt(source, index) for index in range(share)]
        for prompt in prompts:
            if prompt.answer is None:
                raise ConfigurationError(
                    f"warmup: prompt {prompt.prompt_id} has no reference answer to learn from; "
                    "give one to every row, or leave the warm-up out"
                )
        return prompts

    def _training_prompt(self, source: int, index: int) -> Prompt:
        return _read_prompts(self._train.slice(int(self._starts[source]) + index, 1))[0]

    def _order(self, source: int, epoch: int) -> npt.NDArray[np.int64]:
        """The order of a source's current epoch; the last one used is kept."""
        kept = self._orders.get(source)
        if kept is None or kept[0] != epoch:
            kept = (epoch, epoch_order(self._seed, source, epoch, self.train_sizes[source]))
            self._orders[source] = kept
        return kept[1]


def _make(spec: RunSpec, run_folder: Path, folder: Path) -> None:
    """Writes everything beside its place, syncs it and renames it there, the manifest having been written last."""
    collection = collect_prompts(spec.data, spec.seed)
    make_folder(run_folder)
    temporary = run_folder / f".{INPUTS}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        train = [prompt for prompts in collection.train for prompt in prompts]
        parts = {TRAIN: train, HELD_OUT: collection.held_out, PROBE: collection.probe}
        for name, prompts in parts.items():
            pq.write_table(_table(prompts), temporary / name, compression="zstd")
        model = _initial_model(spec, collection, temporary)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        for path in files:
            sync_file(path)
        manifest = {
            "identity": identity(spec),
            "files": {path.relative_to(temporary).as_posix(): file_sha256(path) for path in files},
            "data_digest": chain_digest(_row_digest(name, prompt) for name, part in parts.items() for prompt in part),
            "train_sizes": [len(prompts) for prompts in collection.train],
            "held_out_prompts": len(collection.held_out),
            "probe_prompts": len(collection.probe),
            **asdict(model),
        }
        for path in temporary.rglob("*"):
            if path.is_dir():
                sync_folder(path)
        write_json(temporary / MANIFEST, manifest)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _initial_model(spec: RunSpec, collection: Collection, folder: Path) -> ModelFacts:
    """Facts of the initial model; makes it below the inputs' folder if the spec says so."""
    if isinstance(spec.rollout.engine, VirtualRollout):
        return ModelFacts("", {}, spec.rollout.engine.vocabulary, 0)
    if isinstance(spec.model, ModelFolder):
        return describe_model(Path(spec.model.path).resolve())
    prompts = [prompt for prompts in (*collection.train, collection.probe) for prompt in prompts]
    answers = [prompt.answer for prompt in prompts if prompt.answer is not None]
    others = [*answers, spec.data.system_prompt or ""]
    texts = [prompt.text for prompt in prompts]
    if spec.rollout.tools is not None:
        others.append(string.printable)
        texts += [turn for answer in answers if CALL in answer for turn in split_turns(answer)[0]]
    tokenizer = train_tokenizer(spec.model.tokenizer, texts, others)
    vocabulary: int = tokenizer.get_vocab_size()
    (folder / MODEL).mkdir()
    save_tokenizer(tokenizer, folder / MODEL, spec.model.max_positions)
    make_model(spec.model, vocabulary, spec.seed, folder / MODEL)
    return ModelFacts(MODEL, {}, vocabulary, count_parameters(folder / MODEL))


def _table(prompts: Sequence[Prompt]) -> pa.Table:
    rows = [
        (prompt.source, prompt.index, prompt.prompt_id, prompt.text, prompt.answer, canonical_json(prompt.entry))
        for prompt in prompts
    ]
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def _row_digest(part: str, prompt: Prompt) -> str:
    row = [part, prompt.source, prompt.index, prompt.prompt_id, prompt.text, prompt.answer, dict(prompt.entry)]
    return json_digest(row)


def _read_table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path, schema=SCHEMA).combine_chunks()
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _read_prompts(table: pa.Table) -> list[Prompt]:
    return [
        Prompt(row["source"], row["index"], row["prompt_id"], row["text"], row["answer"], json.loads(row["entry"]))
        for row in table.to_pylist()
    ]
