"""The engines and trainer ranks of all designs: the same work, given image files by address or by value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import ray

from benchmarks.payload.images import Look, Packed, UInt8, look_at, read_image
from yatt_core.actors.rollout import RolloutActor
from yatt_core.experience.batch import load_batch
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, GenerateResult, Returned
from yatt_core.protocols.receipts import ShardRef

TERM = 1
VERSION = 0


class LookingEngine(RolloutActor):
    """The product's engine actor around a virtual engine that takes no time; it first reads a request's images."""

    def __init__(self, spec_json: str, run_folder: str, instance: int, term: int, images: str) -> None:
        super().__init__(spec_json, run_folder, instance, term)
        self._images = Path(images)
        self._seen = Look()
        self.load(term, "", resident=True)
        self._ready().update_weights({"state": np.zeros(1, np.uint8)}, VERSION)

    def generate(self, term: int, request: GenerateRequest, number: int) -> Iterator[GeneratePiece | Returned]:
        """Reads the images by their addresses; the answer contains nothing of them."""
        for addresses in request.media:
            for address in addresses:
                self._seen += look_at(read_image(self._images, address))
        yield from super().generate(term, request, number)

    def generate_from(
        self, term: int, request: GenerateRequest, images: Sequence[UInt8]
    ) -> tuple[GenerateResult, list[UInt8]]:
        """Takes the images by value, and returns them with the answer, like rows of a batch that carries its images."""
        for image in images:
            self._seen += look_at(image)
        return self._answered(term, request), list(images)

    def generate_all(
        self, term: int, requests: Sequence[GenerateRequest], batch: Packed
    ) -> tuple[list[GenerateResult], Packed]:
        """Answers an engine's whole share of an iteration, given in one packed batch."""
        images = batch.images()
        results = []
        for request in requests:
            for _ in request.prompts:
                self._seen += look_at(next(images))
            results.append(self._answered(term, request))
        return results, batch

    def _answered(self, term: int, request: GenerateRequest) -> GenerateResult:
        with self._presence.serving("generate", term):
            return self._ready().generate(request)

    def seen(self) -> Look:
        """Returns the images read since the last call, and resets the count."""
        seen = self._seen
        self._seen = Look()
        return seen


class LookingRank:
    """A trainer rank."""

    def __init__(self, run_folder: str, images: str, rank: int, ranks: int) -> None:
        self._folder = Path(run_folder)
        self._images = Path(images)
        self._rank = rank
        self._ranks = ranks

    def learn(self, shards: tuple[ShardRef, ...]) -> Look:
        """Loads the iteration's experience, and reads the images of this rank's samples one at a time."""
        batch = load_batch(self._folder, shards)
        seen = Look()
        for media in batch.media[self._rank :: self._ranks]:
            for address in media:
                seen += look_at(read_image(self._images, address))
        return seen

    def learn_from(self, images: Sequence[UInt8]) -> Look:
        """Reads images of this rank's samples, given by value."""
        return sum(map(look_at, images), Look())

    def learn_packed(self, batch: Packed) -> Look:
        """Reads all images of this rank's samples, given by value."""
        return sum(map(look_at, batch.images()), Look())


def actor(kind: type, *arguments: object) -> ray.actor.ActorHandle:
    """Creates an actor that ends with this driver."""
    return ray.remote(kind).options(num_cpus=0).remote(*arguments)
