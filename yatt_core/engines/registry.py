"""Builds the engine that a spec names; imports an engine's libraries only when they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from yatt_core.engines.rollout.served.companions import Spanned
from yatt_core.prompts.codec import positions
from yatt_core.protocols.engines import RankContext, RolloutEngine, TrainEngine
from yatt_core.spec import RunSpec
from yatt_core.spec.availability import check_available
from yatt_core.spec.sections.accelerated import Fsdp2Trainer, MegatronTrainer, VllmRollout
from yatt_core.spec.sections.rollout import TorchRollout, VirtualRollout
from yatt_core.spec.sections.trainer import TorchTrainer, VirtualTrainer


def build_rollout_engine(
    spec: RunSpec, model_path: str, inputs_folder: Path, spanned: Spanned | None = None
) -> RolloutEngine:
    """Builds the rollout engine of a spec; its weights arrive later.

    inputs_folder: the run's inputs, in the run's folder: an engine reads images from it, a sampler all that it needs.
    spanned: the nodes of an engine that has several.
    """
    engine = spec.rollout.engine
    if spec.has.samplers:
        from yatt_core.engines.rollout.workload.engine import WorkloadSampler

        return WorkloadSampler(spec, inputs_folder.parent, inputs_folder)
    match engine:
        case TorchRollout(continuous=True, max_num_seqs=int(most)):
            from yatt_core.engines.rollout.torch.continuous import ContinuousTorchEngine

            return ContinuousTorchEngine(
                model_path=model_path,
                dtype=engine.dtype,
                max_prompt_tokens=longest_context(spec, model_path),
                max_new_tokens=spec.rollout.max_new_tokens,
                inputs_folder=inputs_folder,
                max_num_seqs=most,
                kernels=engine.kernels,
            )
        case TorchRollout():
            from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine

            return TorchRolloutEngine(
                model_path=model_path,
                dtype=engine.dtype,
                max_prompt_tokens=longest_context(spec, model_path),
                max_new_tokens=spec.rollout.max_new_tokens,
                inputs_folder=inputs_folder,
                kernels=engine.kernels,
                max_num_seqs=engine.max_num_seqs,
                aligned=spec.aligned,
            )
        case VirtualRollout():
            from yatt_core.engines.virtual.rollout import VirtualRolloutEngine

            return VirtualRolloutEngine(engine, spec.seed)
        case VllmRollout():
            check_available(spec)
            from yatt_core.engines.rollout.served.engine import ServedRolloutEngine
            from yatt_core.engines.rollout.vllm.launch import VLLM_LAUNCH

            return ServedRolloutEngine(
                launch=VLLM_LAUNCH,
                model_path=model_path,
                spec=engine,
                max_prompt_tokens=longest_context(spec, model_path),
                max_new_tokens=spec.rollout.max_new_tokens,
                inputs_folder=inputs_folder,
                spanned=spanned,
                takes_changes=spec.trainer.sync == "delta",
                invariant=spec.must_be_exact,
            )
        case _:
            assert_never(engine)


def longest_context(spec: RunSpec, model_path: str) -> int:
    """Returns the maximum number of tokens that precede a response, or one of its later turns, in the model's input.

    model_path: the run's Hugging Face folder, whose positions limit the number.
    """
    return spec.longest_context(positions(spec, model_path))


def build_train_engine(spec: RunSpec, context: RankContext) -> TrainEngine:
    """Builds the train engine of a spec, not yet connected to its group."""
    engine = spec.trainer.engine
    if not spec.has.language_model:
        from yatt_core.engines.train.base.engine import WorkloadTrainEngine
        from yatt_core.engines.train.workload.own import OwnWorkload
        from yatt_core.engines.train.workload.sampled import SampledWorkload

        workload = SampledWorkload if spec.has.samplers else OwnWorkload
        return WorkloadTrainEngine(spec, workload(spec, context))
    match engine:
        case TorchTrainer():
            from yatt_core.engines.train.torch.engine import TorchTrainEngine

            return TorchTrainEngine(spec, context)
        case VirtualTrainer():
            from yatt_core.engines.virtual.trainer import VirtualTrainEngine

            return VirtualTrainEngine(spec, context)
        case Fsdp2Trainer():
            from yatt_core.engines.train.fsdp2.engine import Fsdp2TrainEngine

            return Fsdp2TrainEngine(spec, context)
        case MegatronTrainer():
            check_available(spec)
            from yatt_core.engines.train.megatron.engine import MegatronTrainEngine

            return MegatronTrainEngine(spec, context)
        case _:
            assert_never(engine)
