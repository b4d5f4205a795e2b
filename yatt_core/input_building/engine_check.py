"""Checks before a start what engines and trainers would refuse once they open: models, exactness, and attention's reach.

Consumes a spec and the small files of its models' folders. Raises `ConfigurationError`, which names the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from yatt_core.engine_environments import VLLM, is_installed, runs_on_accelerators
from yatt_core.engines.dense.pieces import ON_CORES_ALONE
from yatt_core.engines.folder_check import Opener, check_folder, own_code
from yatt_core.engines.rollout.vllm.settings import batch_mistake
from yatt_core.errors import ConfigurationError
from yatt_core.input_building.given_models import POLICY_KEY
from yatt_core.inputs.identity import given_models, judge_models
from yatt_core.models.config_file import read_config
from yatt_core.models.dense_tensors import is_plain
from yatt_core.models.known_tokens import embedding_rows, setting_of
from yatt_core.models.model_folder import positions_of
from yatt_core.problems import Problems
from yatt_core.spec.rewards.judges import GenerativePart, RewardModelPart, TorchJudge
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.model import GivenFolder, ModelFromConfig
from yatt_core.spec.sections.rollout import TorchRollout
from yatt_core.spec.sections.trainer import TorchTrainer, VirtualTrainer

SOFT_CAP = "attn_logit_softcapping"


@dataclass(frozen=True, slots=True)
class OpenedFolder:
    """A folder that the run opens.

    place: what names it in the spec, for messages.
    """

    place: str
    folder: Path
    opener: Opener


def check_engines(spec: RunSpec, attached: bool = False) -> None:
    """Raises `ConfigurationError` with all that engines would refuse about the spec and its models' folders.

    attached: whether the engines run on a cluster that exists already, whose devices are not known here.
    """
    problems = Problems()
    for opened in opened_folders(spec):
        with problems.noting():
            try:
                check_folder(opened.folder, opened.opener)
            except ConfigurationError as error:
                raise ConfigurationError(_placed(opened.place, str(error))) from error
    if not attached:
        with problems.noting():
            check_exact_here(spec, _on_processors)
        with problems.noting():
            _check_aligned_device(spec)
    with problems.noting():
        _check_aligned_model(spec)
    with problems.noting():
        _check_likeliest(spec)
    problems.raise_any()


def opened_folders(spec: RunSpec) -> Iterator[OpenedFolder]:
    """Yields the folders that torch's engines, trainers and judges open, each with its opener.

    Not those that only vLLM opens, which supports more than transformers' models.
    """
    trainer = None if isinstance(spec.trainer.engine, VirtualTrainer) else spec.trainer.engine
    if isinstance(spec.model, GivenFolder) and not spec.virtual:
        generates = isinstance(spec.rollout.engine, TorchRollout) and spec.samples_responses
        yield OpenedFolder(
            "model.path",
            Path(spec.model.path),
            Opener(generates, trainer, images=spec.data.has_images, adapters=_merged_adapters(spec)),
        )
    for key, model in given_models(spec).items():
        yield OpenedFolder(f"{key}.path", Path(model.path), Opener(trainer=trainer))
    judges = judge_models(spec)
    for part in spec.rewards.judges:
        place = f"rewards.parts {part.name!r}: model.path"
        if isinstance(part, RewardModelPart):
            yield OpenedFolder(place, Path(part.model.path), Opener(classifies=True))
        elif isinstance(part, GenerativePart) and isinstance(part.engine, TorchJudge) and part.name in judges:
            yield OpenedFolder(place, Path(judges[part.name].path), Opener(generates=True))


def _merged_adapters(spec: RunSpec) -> tuple[str, ...]:
    """Returns the targets whose adapters engines merge into the folder's tensors; with images, the spec itself is refused."""
    lora = spec.trainer.lora
    return () if lora is None or lora.sync == "merged" or spec.data.has_images else lora.targets


def _on_processors(engine: VllmRollout) -> bool:
    """Returns whether an engine runs on the cores of processors; of one that is not installed, that alone is said."""
    return not runs_on_accelerators(VLLM, engine.environment)


def check_exact_here(spec: RunSpec, on_processors: Callable[[VllmRollout], bool]) -> None:
    """Raises `ConfigurationError` if a run that must be exact cannot be on the devices of this machine.

    on_processors: as for `exact_obstacles_here`.
    """
    if spec.must_be_exact and (obstacles := exact_obstacles_here(spec, on_processors)):
        raise ConfigurationError(f"exact: must be false or auto, because {'; '.join(obstacles)}")


def check_exact_on(spec: RunSpec, processors: bool) -> None:
    """Raises `ConfigurationError` if a run that must be exact, or aligned, cannot be on devices that may not be here.

    processors: whether they are cores; otherwise GPUs.
    """
    problems = Problems()
    with problems.noting():
        check_exact_here(spec, lambda _: processors)
    if spec.aligned and not processors:
        problems.note(ConfigurationError(ON_CORES_ALONE))
    problems.raise_any()


def exact_obstacles_here(
    spec: RunSpec, on_processors: Callable[[VllmRollout], bool] = _on_processors
) -> tuple[str, ...]:
    """Returns the reasons why a spec cannot be exact on the devices of this machine; empty if it can, as far as is known.

    On GPUs `exact: true` has vLLM in a mode that costs throughput; `exact: auto` leaves its kernels as they are.

    on_processors: returns whether an engine of vLLM computes on the cores of processors.
    """
    engines = _vllm_engines(spec)
    obstacles = spec.obstacles_on_processors() if any(map(on_processors, engines.values())) else []
    on_gpus = " and ".join(place for place, engine in engines.items() if not on_processors(engine))
    if on_gpus and not spec.must_be_exact:
        obstacles.append(
            f"vLLM on GPUs may answer differently in another batch ({on_gpus}); exact: true has it in its batch-invariant mode"
        )
    return tuple(obstacles)


def asked_when_opened(spec: RunSpec, on_processors: Callable[[VllmRollout], bool] = _on_processors) -> tuple[str, ...]:
    """Returns the places of a spec that must be exact whose engines alone can tell whether they are.

    Those are vLLM's on GPUs: each is opened in vLLM's batch-invariant mode, and answers the same prompts alone and in a crowd.

    on_processors: as for `exact_obstacles_here`.
    """
    if not spec.must_be_exact:
        return ()
    return tuple(place for place, engine in _vllm_engines(spec).items() if not on_processors(engine))


def _vllm_engines(spec: RunSpec) -> dict[str, VllmRollout]:
    """Returns vLLM's engines by their places in the spec."""
    engines: dict[str, object] = {"rollout.engine": spec.rollout.engine} if spec.samples_responses else {}
    for part in spec.rewards.judges:
        if isinstance(part, GenerativePart):
            engines[f"the judge of reward part {part.name!r}"] = part.engine
    return {place: engine for place, engine in engines.items() if isinstance(engine, VllmRollout)}


def small_batches(spec: RunSpec) -> Iterator[str]:
    """Yields what is wrong with the batches of vLLM's engines, each line beginning with its key.

    Models that do not exist yet, or cannot be read, and engines that are not installed here are passed over.
    """
    engines: list[tuple[str, object, int | None]] = []
    if spec.samples_responses:
        known = spec.model.max_positions if isinstance(spec.model, ModelFromConfig) else _positions(spec.model)
        engines.append(("rollout.engine", spec.rollout.engine, None if known is None else spec.longest_sequence(known)))
    for number, part in enumerate(spec.rewards.parts):
        if isinstance(part, GenerativePart):
            engines.append((f"rewards.parts.{number}.engine", part.engine, _positions(part.model)))
    for key, engine, longest in engines:
        if not isinstance(engine, VllmRollout) or longest is None or not is_installed(VLLM, engine.environment):
            continue
        said = batch_mistake(
            engine.max_num_batched_tokens, engine.max_num_seqs, longest, on_processors=_on_processors(engine)
        )
        if said:
            yield f"{key}.{said}"


def _positions(model: object) -> int | None:
    """Returns the positions of a model in a folder; None if they are not known."""
    if not isinstance(model, GivenFolder):
        return None
    try:
        return positions_of(read_config(Path(model.path)))
    except ConfigurationError:  # said where the folder is checked
        return None


def check_reach(spec: RunSpec, model_path: str, longest: int) -> None:
    """Raises `ConfigurationError` if the longest prompt and a response after it reach beyond a sliding window.

    longest: tokens of the longest prompt.
    """
    generates = isinstance(spec.rollout.engine, TorchRollout) and spec.samples_responses
    packs = isinstance(spec.trainer.engine, TorchTrainer) and spec.trainer.engine.packed
    if not (generates or packs) or is_plain(read_config(Path(model_path))):
        return
    from yatt_core.models.loading import read_config as transformers_config

    config = transformers_config(model_path).get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    positions = longest + spec.rollout.max_response_tokens
    if window is None or (kinds and "sliding_attention" not in kinds) or positions <= window:
        return
    who = "rollout.engine.kind 'torch'" if generates else "trainer.engine.packed"
    instead = "rollout.engine.kind: vllm" if generates else "packed: false"
    raise ConfigurationError(
        f"{who} does not support sliding windows: the longest prompt and a response may have {positions} tokens, but the "
        f"model's window is {window}; lower data.max_prompt_tokens or rollout.max_new_tokens, or use {instead}"
    )


def folder_remarks(spec: RunSpec) -> Iterator[str]:
    """Yields what is accepted about the models' folders, but may not be what their authors meant."""
    for opened in opened_folders(spec):
        config = read_config(opened.folder)
        if code := own_code(config):
            yield (
                f"{opened.place}: the folder brings code of its own ({code}), which is never executed; transformers' own "
                f"{config.get('model_type')} is used instead"
            )
        if setting_of(config, SOFT_CAP) is not None:
            yield (
                f"{opened.place}: the model caps attention logits ({SOFT_CAP}), which fused attention ignores; it is refused "
                "when its weights are loaded, if that changes its outputs"
            )


def _check_aligned_model(spec: RunSpec) -> None:
    """Raises `ConfigurationError` if an aligned run has a model that YATT's own kernels do not cover."""
    if spec.aligned and isinstance(spec.model, GivenFolder):
        from yatt_core.engines.dense.kernels import require_aligned
        from yatt_core.engines.dense.shape import why_general_config
        from yatt_core.models.loading import read_config as transformers_config

        require_aligned("auto", why_general_config(transformers_config(spec.model.path)))


def _check_aligned_device(spec: RunSpec) -> None:
    """Raises `ConfigurationError` if an aligned run would have GPUs."""
    if spec.aligned:
        from yatt_core.engines.dense.aligned import require_cores
        from yatt_core.engines.device import own_device

        require_cores(own_device())


def _check_likeliest(spec: RunSpec) -> None:
    """Raises `ConfigurationError` if distillation reads more tokens than a model has."""
    distillation = spec.algorithm.distillation
    if distillation is None or distillation.top_k is None or not isinstance(spec.model, GivenFolder):
        return
    for path in (spec.model.path, *(teacher.model.path for teacher in distillation.teachers)):
        rows = embedding_rows(read_config(Path(path)))
        if rows is not None and distillation.top_k > rows:
            raise ConfigurationError(
                f"algorithm.distillation.top_k: {distillation.top_k} is more than the {rows} tokens of {path}"
            )


def _placed(place: str, text: str) -> str:
    """Returns the lines of a message with the key in front of those that have none; the reader of a folder knows one only."""
    lines = [line.removeprefix(POLICY_KEY) for line in text.splitlines()]
    return "\n".join(line if line.startswith(("trainer.", "rollout.")) else f"{place}: {line}" for line in lines)
