"""`yatt check`: tries out everything that a run needs except the engines, in seconds and without a cluster.

Consumes a spec. Builds the run's inputs in a scratch folder, which is deleted afterwards, and calls the reward
functions. Writes tables or one JSON object; exits with 2 for a spec that could not run.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.run.home import Home
from ops.presentation.output import message, write, write_json, write_table
from ops.presentation.progress import logged_progress
from ops.presentation.words import duration, size
from ops.terminal.fetching import fetched
from ops.terminal.options import HomeOption, Output, OutputOption, OverridesOption, SpecArgument, examples
from yatt_core.counting import many
from yatt_core.problems import Problems

if TYPE_CHECKING:
    from ops.preflight.endpoint_trial import EndpointTrials
    from ops.preflight.first_prompt import FirstPrompt
    from ops.preflight.needs import ResourceNeeds
    from ops.preflight.reward_trial import RewardTrial
    from ops.preflight.row_contents import RowContents
    from ops.preflight.row_trial import RowsTried
    from ops.preflight.start_forecast import StartForecast
    from yatt_core.protocols.receipts import InputsReceipt
    from yatt_core.spec import RunSpec

app = typer.Typer()


ROWS_FOR_KEYS = 100
"""Number of rows of each source whose keys are compared with those that the spec names."""
SHOWN_CHARACTERS = 1_200
"""Maximum number of characters of a prompt that a terminal shows."""


@app.command(
    epilog=examples("yatt check configs/quickstart.yaml", "yatt check my.yaml --set data.max_prompt_tokens=512 -o json")
)
def check(
    spec: SpecArgument,
    overrides: OverridesOption = None,
    home: HomeOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no judge's endpoint.")] = False,
    output: OutputOption = Output.TEXT,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Try the reference answers and tests of N rows, spread evenly, not of all."
        ),
    ] = None,
) -> None:
    """Check a spec before a run: all rows, prompts, reference answers, reward functions and the model's folder.

    Starts no cluster. Leaves nothing behind but the verdicts on reference answers and tests that were tried (`checks` in the
    home folder), so that a second check is quick. Each endpoint that judges is asked one question. If YATT_RAY_ADDRESS names a
    cluster, its nodes are asked which of them share the home folder. `yatt train` makes the same checks, of all rows once its
    cluster is up.
    """
    message(f"reading {spec}")  # before the libraries are read, which takes most of the first second
    from ops.preflight.bfloat16 import bfloat16_products
    from ops.preflight.disks import check_disks
    from ops.preflight.exactness import Exactness
    from ops.preflight.needs import needs_of
    from ops.preflight.ports import weight_ports
    from ops.preflight.reward_trial import same_for_all
    from ops.preflight.run import check_before_start
    from ops.preflight.solution_trial import try_solutions
    from ops.preflight.unused_keys import unused_keys
    from yatt_core.datasets.sources import first_prompts, source_place
    from yatt_core.spec import load_spec

    place = Home.locate(home)
    checked = fetched(place.folder, load_spec(spec, overrides or (), with_files=True), weights=False)
    if not checked.has.language_model:
        _check_workload(place, spec, checked, output)
        return
    inputs: list[InputsSummary] = []
    asked: list[EndpointTrials] = []
    unsolved: list[str] = []

    def further() -> None:
        problems = Problems()
        with problems.noting():
            inputs.append(_all_inputs(checked, place.folder, sample))
        with problems.noting():
            unsolved.extend(try_solutions(checked))
        with problems.noting():
            asked.extend([] if offline else [_endpoints(checked)])
        problems.raise_any()

    with warnings_of("yatt_core.input_building") as logged:
        sound = check_before_start(place.folder, checked, message, further)
    (found,) = inputs
    trials = [*sound.trials, *(trial for each in asked for trial in each.trials)]
    disks = check_disks(place.folder, checked)
    needs = needs_of(checked)
    products = bfloat16_products(checked)
    start = _start(place, checked, found)
    exactness = Exactness.of(checked)
    unused = unused_keys(checked, first_prompts(checked.data, checked.seed, ROWS_FOR_KEYS))
    warnings = [
        *sound.warnings,
        *same_for_all(checked, sound.trials),
        *unsolved,
        *(warning for each in asked for warning in each.warnings),
        *logged,
        *found.contents.warnings,
        *found.rows.warnings,
        *_answers_missing(checked, found),
        *products.warnings,
        *start.warnings,
    ]
    if output is Output.JSON:
        receipt = found.receipt
        facts = {
            "prompts": {
                "train": receipt.train_prompts,
                "held_out": receipt.held_out_prompts,
                "probe": receipt.probe_prompts,
            },
            "longest_prompt": found.longest,
            "over_long": receipt.over_long,
            "answerless": found.answerless,
            "conversations": found.conversations,
            "conversation": found.shown,
            "first_prompt": None if found.first is None else asdict(found.first),
            "labels": found.contents.labels,
            "rows_tried": {"tried": found.rows.tried, "of": found.rows.of},
            "unused_keys": {source_place(checked.data, number): keys for number, keys in unused.items()},
            "warnings": warnings,
        }
        write_json(
            {
                **facts,
                "trials": [asdict(trial) for trial in trials],
                "needs": asdict(needs),
                "disks": disks,
                "weight_ports": weight_ports(checked),
                "bfloat16_products": products.facts,
                "start": start.facts,
                "exact": asdict(exactness),
            }
        )
        return
    _print(checked, found, trials)
    _print_unused(checked, unused)
    for warning in warnings:
        message(f"warning: {warning}")
    nodes = _of_nodes(disks, weight_ports(checked), checked.storage.url)
    for line in (*exactness.lines, *products.lines, start.line, *_needed(checked, needs), *nodes):
        write(line)
    write(f"`yatt plan {spec}` explains these figures\nthe spec is sound; to start a run: yatt train {spec}")


def _check_workload(home: Home, file: Path, spec: RunSpec, output: Output) -> None:
    from ops.cli.commands.planning.check_workload import check_workload

    check_workload(home, file, spec, output)


def _endpoints(spec: RunSpec) -> EndpointTrials:
    """Asks the endpoints that judge one question each."""
    from ops.preflight.endpoint_trial import ask_endpoints
    from yatt_core.spec.rewards.judges import EndpointPart

    if any(isinstance(part, EndpointPart) for part in spec.rewards.judges):
        message("asking the judges' endpoints one question each")
    return ask_endpoints(spec)


def _start(home: Home, spec: RunSpec, found: InputsSummary) -> StartForecast:
    """Returns how long a run takes here until its work begins."""
    from ops.group.address import shared_server
    from ops.preflight.start_forecast import forecast_start

    return forecast_start(
        home,
        spec,
        found.receipt,
        inputs_seconds=found.inputs_seconds,
        shares_server=shared_server(home) is not None,
    )


@contextmanager
def warnings_of(logger: str) -> Iterator[list[str]]:
    """Yields a list of the warnings that a package logs within the context."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    collector = Collector(logging.WARNING)
    logging.getLogger(logger).addHandler(collector)
    try:
        yield found
    finally:
        logging.getLogger(logger).removeHandler(collector)


@dataclass(frozen=True, slots=True)
class InputsSummary:
    """What the inputs contain.

    longest: id and number of tokens of the longest prompt.
    answerless: number of prompts without a reference answer.
    first_answerless: id of the first of these; empty if there are none.
    conversations: number of prompts of several messages.
    shown: id and transcript of the first of these; None if there are none.
    contents: what the rows' responses, labels and answers are.
    rows: the rows whose reference answers and tests were tried.
    first: the first training prompt as the model reads it; None in a virtual run.
    inputs_seconds: CPU seconds of this process for building the inputs, as a run does.
    """

    receipt: InputsReceipt
    longest: dict[str, Any]
    answerless: int
    first_answerless: str
    conversations: int
    shown: dict[str, str] | None
    contents: RowContents
    rows: RowsTried
    first: FirstPrompt | None
    inputs_seconds: float


def _all_inputs(spec: RunSpec, home: Path, sample: int | None) -> InputsSummary:
    """Builds the inputs in a scratch folder while showing the progress, and returns what they contain."""
    from ops.preflight.row_trial import LOGGER

    message("reading all rows and encoding all prompts")
    with logged_progress("yatt_core.datasets", "yatt_core.input_building", LOGGER):
        return _inputs(spec, home, sample)


def _inputs(spec: RunSpec, home: Path, sample: int | None) -> InputsSummary:
    from ops.preflight.first_prompt import first_prompt
    from ops.preflight.row_contents import look_at_rows
    from ops.preflight.row_trial import try_rows
    from yatt_core.engines.ahead import input_modules
    from yatt_core.input_building.materialise import materialise
    from yatt_core.inputs.manifest import HELD_OUT, LONGEST, PROBE, TRAIN, read_manifest
    from yatt_core.prompts.prompt_files import PromptFile, read_column

    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".check-", dir=home) as scratch:
        for name in input_modules(spec):  # so that the time is that of a run's worker
            importlib.import_module(name)
        began = time.process_time()
        receipt = materialise(spec, Path(scratch))
        inputs_seconds = time.process_time() - began
        folder = Path(scratch) / receipt.folder
        longest: dict[str, Any] = read_manifest(folder, spec)[LONGEST]
        files = [PromptFile(folder / name) for name in (TRAIN, HELD_OUT, PROBE)]
        answerless = conversations = 0
        first_answerless = ""
        for prompt_id, answer, messages in itertools.chain.from_iterable(
            file.columns(("prompt_id", "answer", "messages")) for file in files
        ):
            conversations += bool(read_column(messages))
            if answer is None:
                answerless = answerless + 1
                first_answerless = first_answerless or prompt_id
        prompts = itertools.chain.from_iterable(files) if conversations else ()
        first = next((prompt for prompt in prompts if prompt.messages), None)
        shown = None if first is None else {"prompt_id": first.prompt_id, "text": first.text}
        contents = look_at_rows(spec, itertools.chain.from_iterable(files))
        rows = try_rows(
            spec=spec,
            prompts=itertools.chain.from_iterable(files),
            total=sum(map(len, files)),
            home=home,
            sample=sample,
        )
        return InputsSummary(
            receipt=receipt,
            longest=longest,
            answerless=answerless,
            first_answerless=first_answerless,
            conversations=conversations,
            shown=shown,
            contents=contents,
            rows=rows,
            first=first_prompt(spec, receipt.model_path, files[0][0]),
            inputs_seconds=inputs_seconds,
        )


def _print(spec: RunSpec, found: InputsSummary, trials: list[RewardTrial]) -> None:
    receipt = found.receipt
    longest = found.longest
    counts = {
        "training": receipt.train_prompts,
        "held-out": receipt.held_out_prompts,
        "SFT probe": receipt.probe_prompts,
    }
    parts = ", ".join(f"{count:,} {part}" for part, count in counts.items() if count)
    write(f"prompts: {parts}; the longest has {many(longest['tokens'], 'token')} ({longest['prompt_id']})")
    if receipt.over_long:
        write(
            f"{many(receipt.over_long, 'prompt', 'are too long', 'is too long')} (data.over_long: {spec.data.over_long})"
        )
    if found.shown is not None:
        write(
            f"{many(found.conversations, 'prompt', 'are conversations', 'is a conversation')}, such as "
            f"{found.shown['prompt_id']}:"
        )
        write(textwrap.indent(found.shown["text"], "    "))
    if found.first is not None:
        write(f"the model reads {found.first.prompt_id} as:")
        write(textwrap.indent(shortened(found.first.text), "    "))
        words: tuple[str, ...] = ("and learns to prefer:", "to:")
        if len(found.first.learnt) == 1:
            words = ("and learns to avoid:" if found.first.avoided else "and learns:",)
        for word, pieces in zip(words, found.first.learnt, strict=False):
            write(word)
            for piece in pieces:
                write(textwrap.indent(shortened(piece), "    "))
    if found.contents.labels is not None:
        desirable, undesirable = found.contents.labels
        write(f"labels: {desirable:,} desirable, {undesirable:,} undesirable")
    if found.rows.tried < found.rows.of and found.rows.tried:
        write(f"sampled: the reference answers and tests of {found.rows.tried:,} of {found.rows.of:,} rows were tried")
    if not spec.virtual:
        write(f"the model has {receipt.parameters:,} parameters and {receipt.vocabulary:,} tokens")
    rows = [(trial.part, trial.prompt_id, trial.given, _score(trial), _shown(trial)) for trial in trials]
    if rows:
        write_table(("part", "prompt", "response", "score", ""), rows, title="reward functions on made-up responses")


def _print_unused(spec: RunSpec, unused: Mapping[int, Sequence[str]]) -> None:
    from yatt_core.datasets.sources import source_place

    for number, keys in unused.items():
        write(f"{source_place(spec.data, number)}: keys that the spec does not use: {', '.join(keys)}")


def shortened(text: str) -> str:
    """Returns a text for a terminal: the beginning and the end of a long one."""
    half = SHOWN_CHARACTERS // 2
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:half]} [...] {text[-half:]}"


def _answers_missing(spec: RunSpec, found: InputsSummary) -> Iterator[str]:
    """Yields a warning about prompts without a reference answer, if some have one or the spec says where it is."""
    receipt = found.receipt
    total = receipt.prompts
    promised = any("answer_field" in source.model_fields_set for source in spec.data.sources)
    if found.answerless and (promised or found.answerless < total):
        yield (
            f"{found.answerless:,} of {many(total, 'prompt', 'have', 'has')} no reference answer (data.sources answer_field), "
            "the first is "
            f"{found.first_answerless}; a reward that compares with it cannot score their responses"
        )


def _needed(spec: RunSpec, needs: ResourceNeeds) -> Iterator[str]:
    """Yields what the run will need of this machine."""
    if needs.memory_bytes is not None and needs.capacity_bytes is not None:
        yield f"the run needs about {size(needs.memory_bytes)} of {size(needs.capacity_bytes)} memory"
    if needs.seconds is not None:
        yield f"{many(spec.iterations, 'iteration', 'take', 'takes')} about {duration(needs.seconds)}, besides the start"
    yield f"a checkpoint takes about {size(needs.checkpoint_bytes)} of disk space"


def _of_nodes(disks: Mapping[str, str] | None, ports: tuple[int, int] | None, url: str | None) -> Iterator[str]:
    """Yields what the nodes of a run share, and on which ports they must reach each other."""
    from ops.preflight.ports import ports_line

    if disks:
        yield _shared(disks, url)
    if ports is not None:
        yield ports_line(ports)


def _shared(disks: Mapping[str, str], url: str | None) -> str:
    """Returns which nodes of the cluster share the home folder."""
    if len(set(disks.values())) == 1:
        return f"all {len(disks)} nodes of the cluster share the home folder: {', '.join(sorted(disks))}"
    members = {
        disk: [node for node, own in sorted(disks.items()) if own == disk] for disk in sorted(set(disks.values()))
    }
    apart = "; ".join(", ".join(nodes) for nodes in members.values())
    return f"the nodes have {len(members)} disks ({apart}); files travel through {url}"


def _score(trial: RewardTrial) -> str:
    return "-" if trial.score is None else f"{trial.score:g}"


def _shown(trial: RewardTrial) -> str:
    return f"{trial.error} {trial.place}".strip()
