"""Where prompts come from, and how many of them an iteration takes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, NonNegativeInt, PositiveInt

from yatt_core.spec.base import SpecModel

Weight = Annotated[float, Field(gt=0, le=1e6)]
"""Of a source; bounded, for sums and products of weights have to stay finite."""


class ReasoningGymSource(SpecModel):
    """Tasks of the reasoning-gym package: generated prompts with a verifiable answer."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    task: str
    """Name of a reasoning-gym task, such as `spell_backward`."""
    size: PositiveInt = 20_000
    """How many training entries to draw; those whose question is held out are dropped."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the task, such as `max_word_len`."""
    weight: Weight = 1.0
    """Share of the prompts that come from here, relative to the other sources."""


class FileSource(SpecModel):
    """Rows of local files, one prompt a row; what all kinds of files share."""

    prompt_field: str = "prompt"
    """Key (or column) of the prompt in a row: a text, or a chat of one message, `[{role: user, content: TEXT}]`."""
    answer_field: str = "answer"
    """Key of the reference answer in a row; rows may lack it."""
    image_field: str | None = None
    """Key of the prompt's image, or of the list of its images (PNG or JPEG): paths relative to the data file, in its
    folder or below it, or the bytes."""
    weight: Weight = 1.0
    """Share of the prompts that come from here, relative to the other sources."""


class JsonlSource(FileSource):
    """A local JSON Lines file, one prompt a row."""

    kind: Literal["jsonl"] = "jsonl"
    path: str
    """The file, relative to the spec's folder."""
    held_out_path: str | None = None
    """A file of held-out rows; without it they are taken from the end of `path`."""


class ParquetSource(FileSource):
    """Local Parquet files, one prompt a row."""

    kind: Literal["parquet"] = "parquet"
    path: str
    """A file, a folder (all `*.parquet` below it) or a pattern such as `data/*.parquet`, relative to the spec's folder; files
    follow one another in order of their names."""
    held_out_path: str | None = None
    """The same for held-out rows; without it they are taken from the end of `path`."""


class HuggingFaceSource(FileSource):
    """A local folder of a Hugging Face dataset: written by `save_to_disk`, or files that `load_dataset` reads."""

    kind: Literal["huggingface"] = "huggingface"
    path: str
    """The folder, relative to the spec's folder. Nothing is fetched."""
    split: str = "train"
    """The split of the training rows."""
    held_out_split: str | None = None
    """The split of the held-out rows; without it they are taken from the end of `split`."""


Source = Annotated[ReasoningGymSource | JsonlSource | ParquetSource | HuggingFaceSource, Field(discriminator="kind")]


class DataSpec(SpecModel):
    """Prompts: sources, order and quantity."""

    sources: tuple[Source, ...] = Field(min_length=1)
    """Mixture: each draw picks a source by weight; each source is walked in a seeded order, epoch by epoch."""
    prompts_per_iteration: PositiveInt = 64
    """Prompts of an iteration; each is answered `rollout.samples_per_prompt` times."""
    logical_shards: PositiveInt = 16
    """Fixed slices of an iteration's prompts; files and decode batches follow them."""
    held_out: PositiveInt = 300
    """Tasks for evaluation, shared out over the sources by weight; no training prompt has the same text and images."""
    probe: NonNegativeInt = 200
    """Training-side tasks that tell SFT when to stop; never trained on either. A run without supervised fine-tuning needs none."""
    system_prompt: str | None = None
    """A system message before each prompt, where the model's chat template takes one."""
    max_prompt_tokens: PositiveInt = 1024
    """A longer prompt is an error that names the row."""

    @property
    def has_images(self) -> bool:
        """True where prompts may come with images."""
        return any(isinstance(source, FileSource) and source.image_field is not None for source in self.sources)
