"""A trained retriever outside of its run: exported to a folder, and opened there to search.

Consumes a run's inputs and one of its checkpoints, as docs/formats.md describes it. Produces a folder with the student's
weights, the vectors of all documents, and their texts.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

from yatt_workloads.retrieval.corpus import (
    FIRST_WORD,
    SETTINGS,
    VOCABULARY,
    Corpus,
    encode_texts,
    read_corpus,
)
from yatt_workloads.retrieval.encoder import DOCUMENT, QUERY, Encoder, new_encoder
from yatt_workloads.retrieval.ranking import Vectors, nearest
from yatt_workloads.retrieval.records import DOCUMENTS, words_of
from yatt_workloads.retrieval.settings import RetrievalSettings

WEIGHTS = "encoder.safetensors"
VECTORS = "vectors.npy"
STUDENT = "student."
TEXTS_AT_ONCE = 250


@dataclass(frozen=True)
class Hit:
    """A document that a search has found. score: the cosine of its vector and the query's."""

    document: str
    text: str
    score: float


class Retriever:
    """Searches an exported folder.

    names: of its documents.

    Raises `ValueError` for a folder whose files do not belong together, and `OSError` for one that lacks a file.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._read(folder)
        except (LookupError, TypeError, RuntimeError, SafetensorError) as error:
            raise ValueError(
                f"{folder}: its files do not belong together: {error}; expected those of one retriever: export it again"
            ) from error

    def _read(self, folder: Path) -> None:
        settings = _settings_of(folder)
        known = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
        self._numbers = {word: number for number, word in enumerate(known, FIRST_WORD)}
        weights = load_file(folder / WEIGHTS)
        longest = weights["body.embeddings.position_embeddings.weight"].shape[0] - 1
        self._longest = min(settings.query_words, longest)
        self._encoder = Encoder(FIRST_WORD + len(known), longest, settings)
        self._encoder.load_state_dict(weights, strict=True)
        self._vectors: Vectors = np.load(folder / VECTORS, allow_pickle=False)
        lines = (folder / DOCUMENTS).read_text(encoding="utf-8").splitlines()
        self._documents = [json.loads(line) for line in lines]
        self.names = frozenset(document["id"] for document in self._documents)
        expected = (len(self._documents), settings.vector_width)
        if self._vectors.shape != expected or self._vectors.dtype != np.float32:
            raise ValueError(
                f"{folder / VECTORS}: has numbers of type {self._vectors.dtype} and shape {list(self._vectors.shape)}; expected "
                f"float32 and {list(expected)}, a vector for each document: export the retriever again"
            )

    def search(self, query: str, limit: int) -> list[Hit]:
        """Returns the best documents, the best one first; fewer than the limit if there are fewer.

        Raises `ValueError` for an empty query, a limit below 1, and vectors that are not finite.
        """
        if not words_of(query):
            raise ValueError("the query is empty; expected at least one word")
        if limit < 1:
            raise ValueError(f"limit: expected at least 1 (given: {limit})")
        words = torch.from_numpy(encode_texts([query], self._numbers, self._longest))
        with torch.no_grad():
            asked = self._encoder(words, QUERY).vectors.numpy()
        scores, numbers = nearest(asked, self._vectors, min(limit, len(self._documents)))
        found = []
        for score, number in zip(scores[0].tolist(), numbers[0].tolist(), strict=True):
            document = self._documents[number]
            found.append(Hit(document["id"], document["text"], score))
        return found


def export_retriever(inputs: Path, checkpoint: Path, folder: Path) -> None:
    """Writes a retriever into a new folder.

    inputs: `RUN/inputs`. checkpoint: one of `RUN/checkpoints`, whichever number of ranks wrote it.

    Raises `ValueError` for a checkpoint that does not have the weights, for a method that trains no dual encoder, and for weights
    that give vectors that are not finite; `FileExistsError` for a folder that exists, and `OSError` for a file that is missing.
    """
    if folder.exists():
        raise FileExistsError(f"{folder}: File exists; expected a new folder")
    settings = _settings_of(inputs)
    if not settings.has_dual:
        raise ValueError(
            f"{inputs}: method {settings.method} trains no dual encoder, whose vectors a retriever searches"
        )
    corpus = read_corpus(inputs)
    encoder = new_encoder(corpus, settings, 0)
    weights = {f"{STUDENT}{name}": parameter.detach() for name, parameter in encoder.named_parameters()}
    _load_weights(weights, checkpoint)
    vectors = _vectors(encoder, corpus)
    nearest(vectors[:1], vectors, 1)  # refuses what is not finite
    folder.mkdir(parents=True)
    save_file({name: parameter.detach() for name, parameter in encoder.named_parameters()}, folder / WEIGHTS)
    np.save(folder / VECTORS, vectors, allow_pickle=False)
    (folder / SETTINGS).write_text(json.dumps(asdict(settings)), encoding="utf-8")
    for name in (VOCABULARY, DOCUMENTS):
        (folder / name).write_bytes((inputs / name).read_bytes())


def _settings_of(folder: Path) -> RetrievalSettings:
    """Returns the settings in a folder. Raises `ValueError` for those of anything else than a retrieval run."""
    path = folder / SETTINGS
    try:
        return RetrievalSettings(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected the settings of a retrieval run: {error}") from error


def _load_weights(weights: dict[str, torch.Tensor], checkpoint: Path) -> None:
    """Fills tensors with those of a checkpoint. Raises `ValueError` for one that has others."""
    try:
        load(weights, storage_reader=HuggingFaceStorageReader(str(checkpoint / "weights")), no_dist=True)
    except CheckpointException as error:  # no `Exception`: nothing else would catch it
        reasons = "; ".join(str(failure) for failure, _ in error.failures.values())
        raise ValueError(
            f"{checkpoint}: its weights cannot be read: {reasons}; expected a checkpoint of the run whose inputs these are"
        ) from error


@torch.no_grad()
def _vectors(encoder: Encoder, corpus: Corpus) -> Vectors:
    words = torch.from_numpy(corpus.documents)
    found: Vectors = np.concatenate(
        [encoder(some, DOCUMENT).vectors.numpy() for some in torch.split(words, TEXTS_AT_ONCE)]
    )
    return found


def main() -> None:
    """Exports a retriever: `python -m yatt_workloads.retrieval.retriever RUN/inputs RUN/checkpoints/NAME FOLDER`."""
    parser = argparse.ArgumentParser(description="Exports the retriever of a checkpoint.")
    parser.add_argument("inputs", type=Path, help="RUN/inputs")
    parser.add_argument("checkpoint", type=Path, help="one of RUN/checkpoints")
    parser.add_argument("folder", type=Path, help="new folder for the retriever")
    options = parser.parse_args()
    try:
        export_retriever(options.inputs, options.checkpoint, options.folder)
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
