"""`yatt init`: recognises the user's own data and writes a first spec for it and a model, or reads a peer's configuration.

Recognisers of installed workloads are asked first. Consumes options, or answers to questions on a terminal. Writes a spec, and a
reward file if asked for one; prints what was recognised, or one JSON object with all of it; never replaces a file.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from flows.run.home import Home
from ops.presentation.output import message, write, write_json
from ops.presentation.transfer import Transfer
from ops.starter.recognition.recognised import RL, ObjectiveKind, RecognitionOptions
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from ops.starter.looks import DataLook, ModelLook
    from ops.starter.understanding import SourceMeaning, Understanding

app = typer.Typer()

Answer = TypeVar("Answer")


@app.command(
    epilog=examples(
        "yatt init",
        "yatt init --data train.parquet --model models/small-instruct",
        "yatt init runs/math --data openai/gsm8k --subset main --model Qwen/Qwen3-0.6B",
        "yatt init runs/pairs --data data/ultrafeedback --split train_prefs --model models/small-instruct",
        "yatt init runs/sums --data questions.jsonl --model models/small-instruct --reward my_reward.py:score",
        "yatt init --data corpus",
        "yatt init runs/gsm8k --from run_qwen2-7b.sh --data train.parquet --model models/small-instruct --here",
    )
)
def init(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]",
            help="Where to write; created if needed. Without --data, a folder that a workload recognises gets its spec.",
        ),
    ] = Path(),
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="A file (JSON Lines, JSON, CSV, Parquet), a dataset's folder, or the name of a dataset on the Hub; repeatable.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="MODEL", help="Hugging Face folder, or the name of a model on the Hub."),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            "--reward",
            metavar="FILE:FUNCTION",
            help="Your reward function, the name of a built-in one, or new to write reward.py; repeatable. Default: the one that "
            "follows from the answers.",
        ),
    ] = None,
    objective: Annotated[
        ObjectiveKind | None, typer.Option(help="What to learn. Default: what the rows are for.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split of a dataset's folder. Default: the one for training.")
    ] = None,
    subset: Annotated[str | None, typer.Option(help="Configuration of a dataset's folder that has several.")] = None,
    prompt_field: Annotated[str | None, typer.Option(help="Key of the prompt. Default: recognised.")] = None,
    answer_field: Annotated[str | None, typer.Option(help="Key of the answer. Default: recognised.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: the data's name.")] = None,
    home: HomeOption = None,
    peer_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Configuration of verl, TRL or OpenRLHF (YAML, or the script or command that starts a run); other options win "
            "over it. Lists what became of each of its keys.",
        ),
    ] = None,
    peer: Annotated[
        str | None, typer.Option(metavar="PROGRAM", help="What reads FILE, such as trl-grpo. Default: told from FILE.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes of FILE's run, where they multiply its batch.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Training rows, where FILE counts in passes. Default: counted."),
    ] = None,
    here: Annotated[
        bool,
        typer.Option("--here", help="Engines and devices of this machine, in place of FILE's: torch, to try it out."),
    ] = False,
    recogniser: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The only recogniser of an installed workload to ask what the data are, or none. Default: all, unless an option "
            "says that a language model learns.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Recognise what a data file means, and write a commented spec that runs on a model's folder.

    What an installed workload recognises (docs/workloads.md) gets its spec, without a model. Asks for what the options leave out
    if it runs on a terminal. Sizes are chosen to fit rows, model and machine.
    """
    from ops.starter.repositories import look_at_given_data, look_at_given_model
    from ops.starter.texts import as_json
    from ops.starter.writing import default_name, write_starter
    from yatt_core.hub.settle import Settling

    place = Home.locate(home).folder
    folder = _expanded(folder)
    data = [_expanded(path) for path in data or ()]
    model = None if model is None else _expanded(model)
    peer_file = None if peer_file is None else _expanded(peer_file)
    if peer_file is not None:
        from ops.cli.commands.planning.peers import start
        from ops.starter.peers.starting import InitOptions

        for option, value in (("--objective", objective), ("--recogniser", recogniser)):
            if value is not None:
                raise ConfigurationError(f"{option} {value}: {peer_file} says what is learnt; leave {option} out")
        wanted = InitOptions(
            file=peer_file,
            peer=peer,
            data=tuple(data),
            split=split,
            subset=subset,
            model=model,
            rewards=tuple(reward or ()),
            prompt_field=prompt_field,
            answer_field=answer_field,
            name=name,
            processes=processes,
            rows=rows,
            here=here,
            settling=Settling(place),
        )
        start(folder, wanted, output)
        return
    _refuse_without_file(peer, processes, rows, here)
    language = {
        "--model": model,
        "--reward": reward,
        "--objective": objective,
        "--split": split,
        "--subset": subset,
        "--prompt-field": prompt_field,
        "--answer-field": answer_field,
    }
    if _begun_with_workload(
        folder=folder, data=data, language=language, recogniser=recogniser, name=name, output=output
    ):
        return
    asks = sys.stdin.isatty() and output is Output.TEXT
    if reward and objective not in (None, RL):
        raise ConfigurationError(
            f"--reward: --objective {objective} learns from the rows and has no rewards; leave one of them out"
        )

    def seen(path: Path) -> DataLook:
        with Transfer() as tell:
            return look_at_given_data(
                given=path, split=split, subset=subset, objective=objective, settling=Settling(place, tell)
            )

    def seen_model(path: Path) -> ModelLook:
        with Transfer() as tell:
            return look_at_given_model(path, Settling(place, tell))

    question = "Data (a file of JSON Lines, JSON, CSV or Parquet, a dataset's folder, or its name on the Hub)"
    given: list[Path | None] = [*data] if data else [None]
    looks = [_found(given=path, option="--data", question=question, look=seen, asks=asks) for path in given]
    network = _found(
        given=model,
        option="--model",
        question="Model (a Hugging Face folder, or a name on the Hub)",
        look=seen_model,
        asks=asks,
    )
    asked = RecognitionOptions(prompt_field, answer_field, objective, bool(reward))
    meaning, rewards = _understood(looks=looks, model=network, asked=asked, rewards=reward or [], asks=asks)
    written = write_starter(
        folder=folder,
        name=name or default_name(Path(looks[0].place.named)),
        understanding=meaning,
        model=network,
        rewards=rewards,
    )
    if output is Output.JSON:
        second = str(written[1]) if len(written) > 1 else None
        write_json(
            {"spec": str(written[0]), "reward": second, "objective": meaning.objective, "sources": as_json(meaning)}
        )
        return
    for line in _said(meaning, rewards):
        message(line)
    for path in written:
        write(f"wrote {path}")
    _tell_next(written[0])


def _begun_with_workload(
    folder: Path,
    data: Sequence[Path],
    language: Mapping[str, object],
    recogniser: str | None,
    name: str | None,
    output: Output,
) -> bool:
    """Writes the spec of a workload whose recogniser knows the data, and says so; returns False if none does.

    Without data, what exists in place of the folder is looked at, and the spec is written there.
    language: options by which a language model learns, with their values.
    """
    from ops.starter.workloads import NONE, look_for_workload, write_recognised
    from ops.starter.writing import default_name

    given = [option for option, value in language.items() if value]
    if recogniser not in (None, NONE) and (given or len(data) > 1):
        said = f"{given[0]} is for language models" if given else "it looks at one file or folder"
        raise ConfigurationError(f"--recogniser {recogniser}: {said}; leave one of them out")
    path = data[0] if data else folder
    if given or len(data) > 1 or not path.exists() or (not data and folder == Path()):
        return False
    look = look_for_workload(path, recogniser)
    if look is None:
        return False
    place = folder if data or path.is_dir() else path.parent
    written = write_recognised(place, name or default_name(look.path), look)
    if output is Output.JSON:
        recognised = {"recogniser": look.recogniser, "what": look.recognition.what, "workload": look.kind}
        write_json({"spec": str(written), **recognised})
        return True
    message(f"{path}: {look.recognition.what}, recognised by {look.recogniser}")
    write(f"wrote {written}")
    _tell_next(written)
    return True


def _expanded(path: Path) -> Path:
    """Returns a path with the home folder in place of `~`, which a shell leaves as it is if it is quoted."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ConfigurationError(f"{path}: there is no such home folder; write the path without ~") from error


def _tell_next(spec: Path) -> None:
    command = shlex.quote(str(spec))
    write(f"next: yatt check {command}")
    write(f"then: yatt train {command}")


def _refuse_without_file(peer: str | None, processes: int | None, rows: int | None, here: bool) -> None:
    """Raises `ConfigurationError` for options that say more about a peer's file, which is not named."""
    for option, value in (("--peer", peer), ("--processes", processes), ("--rows", rows), ("--here", here or None)):
        if value is not None:
            raise ConfigurationError(
                f"{option} {value}: it says more about a peer's configuration; name it with --from"
            )


def _understood(
    looks: Sequence[DataLook], model: ModelLook, asked: RecognitionOptions, rewards: list[str], asks: bool
) -> tuple[Understanding, list[str]]:
    """Returns what the data mean, and the rewards of the user's own; asks for these on a terminal."""
    from ops.starter.understanding import understand

    meaning = None
    default = None
    try:
        meaning = understand(looks, model, asked)
        default = meaning.reward.function if meaning.reward else None
    except ConfigurationError as error:
        if not asks or rewards or asked.objective is not None:
            raise
        message(f"error: {error}")
    if not asks or rewards or (meaning is not None and not meaning.samples):
        assert meaning is not None, "an error ends the command if nobody can be asked"
        return meaning, rewards
    given = typer.prompt("Reward function (FILE:FUNCTION, or new to write reward.py)", default=default, err=True)
    if meaning is not None and given == default:
        return meaning, rewards
    return understand(looks, model, replace(asked, own_reward=True)), [given]


def _said(meaning: Understanding, rewards: Sequence[str]) -> Iterator[str]:
    """Yields what was recognised, for people."""
    for source in meaning.sources:
        yield from _source_said(source)
    if rewards:
        yield f"reward: {', '.join(rewards)}"
    elif meaning.reward is not None:
        yield f"reward: {meaning.reward.function}, reads {meaning.reward.reads}"
    if not meaning.samples:
        yield f"objective: {meaning.objective}"


def _source_said(source: SourceMeaning) -> Iterator[str]:
    look = source.look
    recognised = source.recognised
    more = "" if look.complete else "more than "
    yield f"{look.place.named}: {more}{many(len(look.rows), 'row')}, recognised as {recognised.shape}"
    keys = recognised.source
    named = [
        f"{what} in {keys[key]!r}"
        for key, what in (
            ("system_field", "system messages"),
            ("image_field", "images"),
            ("tools_field", "tools"),
        )
        if key in keys
    ]
    for sentence in (*named, *recognised.reasons, *source.says):
        yield f"  {sentence}"
    if recognised.unused:
        yield f"  not used: {', '.join(recognised.unused)}"


def _found(given: Path | None, option: str, question: str, look: Callable[[Path], Answer], asks: bool) -> Answer:
    """Returns what a path contains; asks for the path, until it can be used, if it is not given."""
    if given is not None:
        return look(given)
    if not asks:
        raise ConfigurationError(f"{option}: missing, and there is no terminal to ask; see `yatt init --help`")
    while True:
        try:
            return look(_expanded(Path(typer.prompt(question, err=True))))
        except (ConfigurationError, DataError) as error:
            message(f"error: {error}")
