"""Where prompts come from, and how many an iteration uses."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, NonNegativeInt, PositiveInt, model_validator

from yatt_core.code_names import CodeFileName, require_one_name
from yatt_core.naming import Names
from yatt_core.row_template import check_template
from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.curriculum import CurriculumSpec
from yatt_core.spec.sections.repository import Repository

MOST_HELD_OUT = 300
MOST_PROBE = 200
"""Sizes of the held-out and probe parts that follow the data: so many tasks, but at most a tenth of them."""
PART_OF_DATA = 10
"""A part that follows the data gets one in this many of a source's distinct tasks."""

Weight = Annotated[float, Field(gt=0, le=1e6)]
"""Weight of a source; bounded so that sums and products of weights stay finite."""


UNFIT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]|^[.-]")
LONGEST_DEFAULT_NAME = 50
"""Characters that a name of a source cannot contain, and the maximum length of one that comes from the data."""
SourceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,59}$")]


class ReasoningGymSource(SpecModel):
    """Tasks of the reasoning-gym package: generated prompts with a verifiable answer."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    task: Annotated[str, Names("code")]
    """Name of a reasoning-gym task, such as `spell_backward`."""
    size: PositiveInt = 20_000
    """Number of training entries to draw; entries whose question is held out are dropped."""
    options: Annotated[dict[str, JsonValue], Names("code")] = Field(default_factory=dict)
    """Options of the task, such as `max_word_len`."""
    name: SourceName | None = None
    """Name of this source in metrics; `null`: its task."""
    weight: Weight = 1.0
    """Weight of this source in the mixture, relative to the other sources."""


class DialogueMarks(SpecModel):
    """What turns begin with in a text that is a dialogue."""

    user: str = Field(default="\n\nHuman:", min_length=1)
    """Before a turn of the user."""
    assistant: str = Field(default="\n\nAssistant:", min_length=1)
    """Before a turn of the assistant."""

    @model_validator(mode="after")
    def _marks_differ(self) -> Self:
        if self.user.startswith(self.assistant) or self.assistant.startswith(self.user):
            raise ValueError(
                f"the marks {self.user!r} and {self.assistant!r} cannot be told apart; expected two of which neither begins "
                "with the other"
            )
        return self


class FileSource(SpecModel):
    """Rows of local files, one prompt per row; the options shared by all file sources."""

    prompt_field: str | None = "prompt"
    """Key (or column) of the prompt in a row: a string, or a conversation, `[{role: ROLE, content: TEXT}, ...]`, with
    the roles system (first message only), user, assistant and tool. A conversation of a run that samples ends with the user's
    message or a tool's result; one that ends with the assistant's is a demonstration, of which all of the assistant's messages
    are learnt whose `weight` is not 0. A dot leads into an object, here and in all keys: `reward_model.ground_truth`. `null`:
    the prompt is what `chosen_field` and `rejected_field` begin with in common or, without these, there is none and the text
    under `answer_field` is learnt as a whole."""
    prompt_template: str | None = None
    """The prompt as a Jinja template over the keys of a row, in place of `prompt_field`, such as
    `"{{ instruction }}{% if input %}\\n\\n{{ input }}{% endif %}"`; a key that a row lacks is an error."""
    system_field: str | None = None
    """Key of a row's system message; a row in which it is missing or empty has `data.system_prompt`, if there is one."""
    answer_field: str = "answer"
    """Key of the reference answer in a row; optional in each row: a string, a number, a boolean (`true` or `false`), a list of
    right answers, or a list of messages that continues the prompt (a demonstration)."""
    chosen_field: str = "chosen"
    """Key of the preferred response in a row, for an objective that learns from pairs: a string, or a list of messages that
    ends with the assistant's. Messages before it, if any, must be the prompt's."""
    rejected_field: str = "rejected"
    """Key of the other response in a row, of the same form."""
    label_field: str = "label"
    """Key of a row's label, for `objective.kind: kto`: true if the response under `answer_field` is desirable, otherwise
    false."""
    image_field: str | None = None
    """Key of the prompt's image or list of images (PNG or JPEG): either bytes, or paths relative to the data file
    that stay within its folder."""
    tools_field: str | None = None
    """Key of the descriptions of the tools that a row's conversation may call, in the form of chat templates: a list, or JSON
    text of one. `null`: those of `rollout.tools`."""
    dialogue: DialogueMarks | None = None
    """Marks of the turns in texts that are dialogues, as in HH-RLHF; `null`: texts are no dialogues."""
    rendered: bool = False
    """Whether the texts are what the model reads, with control tokens in them; no chat template is applied."""
    name: SourceName | None = None
    """Name of this source in metrics; `null`: the name of its file or folder."""
    weight: Weight = 1.0
    """Weight of this source in the mixture, relative to the other sources."""

    @model_validator(mode="after")
    def _template_is_sound(self) -> Self:
        if self.prompt_template is None:
            return self
        if self.prompt_field != FileSource.model_fields["prompt_field"].default:
            raise ValueError("prompt_template: it takes the place of prompt_field; leave one of them out")
        try:
            check_template(self.prompt_template)
        except ValueError as error:
            raise ValueError(f"prompt_template: {error}") from None
        return self

    @model_validator(mode="after")
    def _rendered_texts_are_whole(self) -> Self:
        given = [key for key in ("dialogue", "system_field", "tools_field") if getattr(self, key) is not None]
        if self.rendered and given:
            raise ValueError(
                f"{given[0]}: the texts of the source are rendered, so that no chat template is applied; leave out "
                f"{given[0]} or rendered"
            )
        return self

    @model_validator(mode="after")
    def _keys_have_one_meaning(self) -> Self:
        prompt = self.prompt_field if self.prompt_template is None else None
        others = {
            key: value
            for key in ("system_field", "image_field", "tools_field")
            if (value := getattr(self, key)) is not None
        }
        for key, value in others.items():
            if value in (prompt, self.answer_field):
                raise ValueError(
                    f"{key}: {value!r} is also the key of the prompt or of the answer; expected a key of its own"
                )
        return self


class JsonlSource(FileSource):
    """A local JSON Lines or JSON file, one prompt per row: an object on each line, a list of objects, or an object whose only
    list of objects has the rows; also compressed (.gz, .zst).
    """

    kind: Literal["jsonl"] = "jsonl"
    path: Annotated[str, Names("path")]
    """The file, relative to the spec's folder."""
    held_out_path: Annotated[str | None, Names("path")] = None
    """A file of held-out rows; by default they are taken from the end of `path`."""


class CsvSource(FileSource):
    """A local file of values separated by commas (.csv) or tabs (.tsv) with a header line, one prompt per row; also
    compressed (.gz, .zst).
    """

    kind: Literal["csv"] = "csv"
    path: Annotated[str, Names("path")]
    """The file, relative to the spec's folder."""
    held_out_path: Annotated[str | None, Names("path")] = None
    """A file of held-out rows; by default they are taken from the end of `path`."""


class ParquetSource(FileSource):
    """Local Parquet files, one prompt per row."""

    kind: Literal["parquet"] = "parquet"
    path: Annotated[str, Names("path")]
    """A file, a folder (all `*.parquet` files below it) or a pattern such as `data/*.parquet`, relative to the
    spec's folder; files are read in order of their names."""
    held_out_path: Annotated[str | None, Names("path")] = None
    """A file, folder or pattern of held-out rows; by default they are taken from the end of `path`."""


class HuggingFaceSource(FileSource):
    """A local Hugging Face dataset folder: written by `save_to_disk`, or files that `load_dataset` reads."""

    kind: Literal["huggingface"] = "huggingface"
    path: Annotated[str, Names("path")]
    """The folder, relative to the spec's folder. Nothing is downloaded."""
    subset: str | None = None
    """The configuration whose rows are read: the folder below `path` that has its files. `null`: `path` has a single one."""
    split: str = "train"
    """The split that contains the training rows."""
    held_out_split: str | None = None
    """The split that contains the held-out rows; by default they are taken from the end of `split`."""

    @model_validator(mode="after")
    def _subset_is_below(self) -> Self:
        if self.subset is not None and (
            not self.subset or ".." in PurePath(self.subset).parts or self.subset[0] == "/"
        ):
            raise ValueError(f"subset: {self.subset!r} is not the name of a folder below path")
        return self


class HubSource(Repository, FileSource):
    """A dataset of the Hugging Face Hub, or of a mirror of it (`HF_ENDPOINT`): the files of its splits are fetched once before
    the run is created, and are read by YATT's own readers.
    """

    kind: Literal["hub"] = "hub"
    path: Annotated[str, Names("path")] = ""
    """The folder into which they were fetched; filled in by YATT."""
    subset: str | None = None
    """The configuration whose rows are read: one of those that the repository's README.md names, or the folder that has its
    files. `null`: the default one, or the only one."""
    split: str = "train"
    """The split that contains the training rows."""
    held_out_split: str | None = None
    """The split that contains the held-out rows; by default they are taken from the end of `split`."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits whose rows are read."""
        return (self.split,) if self.held_out_split in (None, self.split) else (self.split, self.held_out_split)


class FunctionSource(FileSource):
    """Rows of a function of yours: `(split, **options) -> iterable of rows`, the same rows at each call."""

    kind: Literal["function"] = "function"
    function: Annotated[str | None, Names("code")] = None
    """`package.module:function`, or the name of an entry point of the group `yatt.sources`."""
    file: Annotated[CodeFileName | None, Names("code")] = None
    """A function in a Python file, as `path/of/file.py:function`. The run keeps its own copy and executes only that."""
    options: Annotated[dict[str, JsonValue], Names("code")] = Field(default_factory=dict)
    """Passed to it as keyword arguments."""
    held_out_rows: bool = False
    """Whether it has held-out rows, which it yields for the split `held_out`; by default they are taken from the end of
    `train`."""
    sha256: Annotated[str | None, Names("code")] = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the function's source file; filled in when the spec is read. Another source is refused."""

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        require_one_name(self.function, self.file)
        return self

    @property
    def path(self) -> str:
        """Stands for it in messages."""
        return self.function or self.file or ""


Source = Annotated[
    ReasoningGymSource | JsonlSource | CsvSource | ParquetSource | HuggingFaceSource | HubSource | FunctionSource,
    Field(discriminator="kind"),
]


def _plain_name(source: Source) -> str:
    """Returns the name that the data give a source."""
    match source:
        case ReasoningGymSource():
            return source.task
        case FunctionSource():
            return source.path.rpartition(":")[2]
        case HubSource():
            return source.repo.rpartition("/")[2]
        case _:
            return PurePath(source.path).stem


class DataSpec(SpecModel):
    """Prompts: sources, order and number."""

    sources: tuple[Source, ...] = ()
    """The mixture of sources: each draw selects a source by weight; each source is traversed in a seeded order,
    epoch by epoch. A language model needs at least one; a workload of your own builds its own inputs."""
    prompts_per_iteration: PositiveInt = 64
    """Prompts per iteration; each gets `rollout.samples_per_prompt` responses."""
    logical_shards: PositiveInt = 16
    """Number of fixed shards of an iteration's prompts, which determine files and decode batches."""
    held_out: PositiveInt | None = None
    """Number of evaluation tasks, distributed over the sources by weight; no training prompt has the same text and
    images as one of them. `null`: 300, but at most a tenth of each source's distinct tasks, or as many as the held-out
    files have."""
    probe: NonNegativeInt | None = None
    """Number of tasks set aside from the training prompts to determine when SFT stops; they are never trained on.
    `null`: 200, but at most a tenth of each source's distinct tasks, and none in a run without SFT."""
    curriculum: CurriculumSpec | None = None
    """`null`: the weights of the sources stay as they are."""
    system_prompt: str | None = None
    """System message before each prompt, if the model's chat template supports one; a conversation with a system message
    of its own keeps that one."""
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Variables of the model's chat template, such as `{enable_thinking: false}` or `{reasoning_effort: high}`."""
    max_prompt_tokens: PositiveInt = 1024
    """Maximum prompt length, including the chat template; less if the model's positions leave less room before a
    response."""
    over_long: Literal["refuse", "skip", "cut_start", "cut_end"] = "refuse"
    """What to do with longer prompts before the run begins: refuse to start, naming the row; leave them out; or leave
    out the beginning or the end of their text. Prompts that are left out or cut are counted and logged."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        given = [source.name for source in self.sources if source.name is not None]
        if len(set(given)) < len(given):
            raise ValueError(f"sources: each name can be given to one source only, not {given}")
        return self

    @model_validator(mode="after")
    def _system_prompt_is_rendered(self) -> Self:
        if self.system_prompt is not None and self.rendered_sources:
            raise ValueError(
                f"system_prompt: the texts of sources.{self.rendered_sources[0]} are rendered, so that no system message is "
                "added to them; leave one of both out"
            )
        return self

    @model_validator(mode="after")
    def _bounds_fit_the_sources(self) -> Self:
        curriculum = self.curriculum
        sources = len(self.sources)
        if sources and curriculum is not None and curriculum.field is None:
            if curriculum.min_share * sources > 1:
                raise ValueError(
                    f"curriculum.min_share: {sources} sources cannot all have a share of {curriculum.min_share:g}; "
                    f"expected at most {1 / sources:.3g}"
                )
            if curriculum.max_share * sources < 1:
                raise ValueError(
                    f"curriculum.max_share: {sources} sources with a share of {curriculum.max_share:g} at most do not "
                    f"add up to 1; expected at least {1 / sources:.3g}"
                )
        return self

    @property
    def source_names(self) -> tuple[str, ...]:
        """A name for each source, all different; a source without a name is numbered if its file has another's name."""
        names = [source.name for source in self.sources]
        for index, source in enumerate(self.sources):
            if source.name is None:
                base = UNFIT_IN_NAMES.sub("_", _plain_name(source))[:LONGEST_DEFAULT_NAME] or f"source_{index}"
                while base in names:
                    base = f"{base}-{index}"
                names[index] = base
        return tuple(name for name in names if name is not None)

    @property
    def most_held_out(self) -> int:
        """Maximum number of held-out tasks."""
        return MOST_HELD_OUT if self.held_out is None else self.held_out

    @property
    def rendered_sources(self) -> list[int]:
        """The numbers of the sources whose texts are what the model reads."""
        return [n for n, source in enumerate(self.sources) if isinstance(source, FileSource) and source.rendered]

    @property
    def has_images(self) -> bool:
        """True if prompts can contain images."""
        return any(isinstance(source, FileSource) and source.image_field is not None for source in self.sources)
