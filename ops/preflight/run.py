"""Checks before a run is created: what the spec refers to, the codec, reward functions, and disk space for a checkpoint.

Consumes the home folder and the spec. Produces warnings; raises `ConfigurationError` and `InfrastructureError`. Leaves
nothing behind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from flows.billing.price_file import check_prices
from flows.prefect_io.secret_blocks import read_block
from flows.run.home import Home
from flows.run.repositories import with_repositories
from ops.preflight.home_folder import check_folder
from ops.preflight.modules import check_modules
from ops.preflight.new_runs import refused_since
from ops.preflight.remarks import remarks, spelled_control_tokens
from ops.preflight.reward_trial import RewardTrial, check_rewards
from ops.preflight.row_trial import try_first_rows
from ops.presentation.words import size
from yatt_core.datasets.own_rows import open_sources
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.problems import Problems
from yatt_core.regular_files import check_regular
from yatt_core.spec import RunSpec
from yatt_core.spec.availability import check_available
from yatt_core.spec.sections.data import CsvSource, JsonlSource, ReasoningGymSource
from yatt_core.spec.sections.model import GivenFolder
from yatt_core.tracing.settings import tracing_settings

SPARE_BYTES = 256 << 20
"""Space for the ledger, logs and experience of a small run."""
TOKENS_OF_OWN_TOKENIZER = 4096
"""A safe upper estimate: a tokenizer trained on the prompts has a few hundred tokens."""
FLOAT32_BYTES = 4
MOST_ENTRIES = 10_000_000
"""Entries of a reasoning-gym task that a run can draw before it begins: about a day's work."""
LOOKED_AT = 16
"""Number of prompts of each source that are searched for control tokens."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of the checks of a sound spec.

    trials: the calls of the reward functions.
    warnings: what works but may not be intended.
    """

    trials: list[RewardTrial]
    warnings: list[str]


def check_before_start(
    home: Path,
    spec: RunSpec,
    tell: Callable[[str], None] = lambda step: None,
    further: Callable[[], None] | None = None,
    copies: Path | None = None,
    accepted: bool = False,
) -> Checked:
    """Makes all checks that a spec must pass before a run is created from it.

    tell: receives the name of each step.
    further: checks the inputs in more depth; called if they can be built, instead of trying only their first rows.
    copies: folder of a run with copies of the files with code; by default they are read where the spec names them.
    accepted: whether a run with this model exists, from which a deployment has new runs made without anybody's doing: what only
        this version refuses is then a warning.

    Raises the errors that would otherwise end the run minutes later: `ConfigurationError` with all mistakes of the spec,
    `InfrastructureError`.
    """
    from flows.driver.attachment import attached
    from ops.integrations.apprise_notifier import AppriseNotifier
    from yatt_core.datasets.sources import first_prompts

    spec = with_repositories(home, spec, read_block=read_block, weights=False)
    problems = Problems()
    trials = list[RewardTrial]()
    warnings = list[str]()
    tell("checking what the spec names")
    with problems.noting():
        AppriseNotifier.from_environment(spec.guards.notify)
    for refused in refused_since(spec):
        if accepted:
            warnings.append(refused)
        else:
            problems.note(ConfigurationError(refused))
    sound = _check_what_is_named(spec, problems, copies)
    found_here = list[str]()
    if not attached():  # the workers of a cluster that exists already have a path of their own
        with problems.noting():
            found_here = check_modules(spec)
    if sound:
        tell("calling the reward functions")
        with problems.noting():
            trials = check_rewards(spec, copies)
        with problems.noting():
            warnings += spelled_control_tokens(spec, first_prompts(spec.data, spec.seed, LOOKED_AT))
        with problems.noting():
            if further is None:
                warnings += try_first_rows(spec, home).warnings
            else:
                further()
    problems.raise_as_configuration()
    _check_surroundings(home, spec)
    check_prices(Home(home), spec)
    tracing_settings(os.environ)
    return Checked(trials, [*remarks(spec), *found_here, *warnings])


def _check_what_is_named(spec: RunSpec, problems: Problems, copies: Path | None) -> bool:
    """Notes what is wrong with everything that a spec names; returns True if its inputs can be built."""
    from ops.integrations.trackers import check_trackers

    with problems.noting():
        check_available(spec)
    with problems.noting():
        check_trackers(spec)
    check_functions(spec, problems, copies)
    if not spec.has.language_model:
        return False  # it builds its inputs itself
    if copies is not None:
        with problems.noting():
            open_sources(spec.data, copies)
    rows = Problems()
    model = Problems()
    check_files(spec, rows)
    if not rows:
        with rows.noting():
            check_rows(spec)
    with model.noting():
        check_model(spec)
    if not rows and not model:
        from yatt_core.input_building.fitting import check_first_prompts
        from yatt_core.input_building.template_check import check_template

        with rows.noting():
            check_first_prompts(spec)
        with rows.noting():
            check_template(spec)
    problems.extend(rows)
    problems.extend(model)
    return not rows and not model


def check_files(spec: RunSpec, problems: Problems) -> None:
    """Notes the data files that do not exist or that are not regular files."""
    for number, source in enumerate(spec.data.sources):
        if isinstance(source, JsonlSource | CsvSource):
            with problems.noting():
                check_regular(Path(source.path), f"data.sources.{number}.path")
            if source.held_out_path is not None:
                with problems.noting():
                    check_regular(Path(source.held_out_path), f"data.sources.{number}.held_out_path")


def check_model(spec: RunSpec) -> None:
    """Raises what is wrong with the models' folders and the codec."""
    if isinstance(spec.model, GivenFolder) and not spec.virtual:
        from yatt_core.models.model_folder import check_model_folder

        try:
            check_model_folder(Path(spec.model.path))
            if spec.trainer.lora is not None:
                check_targets(Path(spec.model.path), spec.trainer.lora.targets)
        except OSError as error:
            raise ConfigurationError(
                f"model.path: {error.filename or spec.model.path} cannot be read: {error.strerror}"
            ) from None
    from flows.driver.attachment import attached
    from yatt_core.input_building.codec_check import check_codec
    from yatt_core.input_building.engine_check import check_engines
    from yatt_core.input_building.given_models import check_before_start as check_given

    check_given(spec)
    check_engines(spec, attached())
    check_codec(spec)


def _check_surroundings(home: Path, spec: RunSpec) -> None:
    """Raises the errors of the object store, of devices without enough memory, and of a full disk."""
    from flows.driver.attachment import attached

    if spec.storage.url is not None:
        from yatt_core.storage.objects import ObjectStore

        ObjectStore(spec.storage.url).check()
    if not attached():
        # An attached cluster reports its own devices later; a local one can be checked before the run is created.
        from yatt_core.planning.cluster import core_cluster, read_cards
        from yatt_core.planning.memory.device_memory import check_device_memory, lag_obstacle

        cluster = core_cluster(read_cards())
        demand = check_device_memory(spec, cluster)
        if demand is not None and (lag := lag_obstacle(spec, demand, cluster)):
            raise ConfigurationError(lag)
    folder = check_folder(home)
    needed = checkpoint_bytes(spec) + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InfrastructureError(
            f"{home}: not enough disk space for a run: with a checkpoint it needs about {size(needed)}, "
            f"{size(free)} is free"
        )


def check_functions(spec: RunSpec, problems: Problems, copies: Path | None = None) -> None:
    """Notes missing reward functions, methods and workloads of the user, judges, placement policies, tools and callbacks."""
    from flows.run.callbacks import find_callbacks
    from yatt_core.engines.train.base.own_methods import try_methods, verify_methods
    from yatt_core.input_building.judge_models import check_before_start as check_judges
    from yatt_core.placement.policies.registry import find_policy
    from yatt_core.rewards.functions import load_part

    for part in spec.rewards.functions:
        with problems.noting():
            load_part(part, copies, spec.rewards.critique)
    with problems.noting():
        verify_methods(spec, copies)
        try_methods(spec)
    with problems.noting():
        check_judges(spec, read_block)
    with problems.noting():
        find_policy(spec.placement, constants_known=False)
    with problems.noting():
        find_callbacks(spec.callbacks, copies)
    if not spec.has.language_model:
        from yatt_core.workloads.checking import check_inputs
        from yatt_core.workloads.finding import make_workload, verify_workload

        with problems.noting():
            verify_workload(spec, copies)
            check_inputs(spec, make_workload(spec, copies))
    if spec.rollout.tools is not None:
        from yatt_core.tools.registry import check_tools

        with problems.noting():
            check_tools(spec.rollout.tools.functions, copies)


def check_rows(spec: RunSpec) -> None:
    """Raises what is wrong with tasks and their options, or with the first rows of the data files and their number."""
    problems = Problems()
    gym_sources = [source for source in spec.data.sources if isinstance(source, ReasoningGymSource)]
    if gym_sources:
        from yatt_core.datasets.gym import create_task

        for number, source in enumerate(spec.data.sources):
            if isinstance(source, ReasoningGymSource):
                with problems.noting():
                    create_task(source.task, source.options)
                if source.size > MOST_ENTRIES:
                    problems.note(
                        ConfigurationError(
                            f"data.sources.{number}.size: {source.size:,} entries take days to draw, before anything is "
                            f"trained; expected at most {MOST_ENTRIES:,}"
                        )
                    )
    whole = True
    if len(gym_sources) < len(spec.data.sources):
        from yatt_core.datasets.sources import look_over

        # Reports a malformed row, or too few rows, now instead of once the cluster is up.
        with problems.noting():
            whole = look_over(spec.data, spec.seed, with_probe=spec.sft is not None)
    problems.raise_any()
    if spec.sft is not None:
        from yatt_core.input_building.demonstrations import check_demonstrations

        check_demonstrations(spec.data, spec.seed, spec.sft.demonstrations, whole)


def check_targets(folder: Path, targets: Sequence[str]) -> None:
    """Raises `ConfigurationError` for an adapter target that is not a matrix of the model."""
    from yatt_core.models.model_folder import matrix_names

    names = matrix_names(folder)
    for target in targets:
        if (last := target.rpartition(".")[2]) not in names:
            near = get_close_matches(last, names, 1)
            meant = f"; did you mean {near[0]!r}" if near else ""
            raise ConfigurationError(
                f"trainer.lora.targets: {folder} has no matrix {target!r}{meant}; it has {', '.join(sorted(names))}"
            )


def checkpoint_bytes(spec: RunSpec) -> int:
    """Returns the approximate size of a checkpoint.

    Counts the policy's and a critic's float32 weights and AdamW moments, and the reference model.
    """
    copies = 3 + spec.keeps_reference
    values = 0
    if spec.critic is not None:
        values = 3 * (parameters(spec) if spec.critic.model is None else _stored(spec.critic.model))
    return FLOAT32_BYTES * (copies * parameters(spec) + values)


def parameters(spec: RunSpec) -> int:
    """Returns the number of parameters of the policy.

    The number is an estimate if the model does not exist yet, and 0 for a virtual run and a workload of one's own.
    """
    if spec.virtual or not spec.has.language_model:
        return 0
    if isinstance(spec.model, GivenFolder):
        return _stored(spec.model)
    from yatt_core.planning.shape import shape_of

    return shape_of(spec, TOKENS_OF_OWN_TOKENIZER).parameters


def _stored(model: GivenFolder) -> int:
    from yatt_core.models.model_folder import count_parameters

    return count_parameters(Path(model.path))
