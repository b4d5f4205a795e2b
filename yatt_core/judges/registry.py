"""Builds the judge that a part of the spec describes; imports an engine's libraries only on demand."""

from __future__ import annotations

from pathlib import Path

from yatt_core.errors import ConfigurationError
from yatt_core.protocols.judges import Judge
from yatt_core.secret_references import BlockReader
from yatt_core.spec.rewards.judges import (
    EndpointPart,
    GenerativePart,
    JudgeEngineSpec,
    JudgePart,
    RewardModelPart,
    TorchJudge,
    VirtualJudge,
)
from yatt_core.spec.sections.accelerated import VllmRollout


def build_judge(
    part: JudgePart,
    model_path: str | None,
    read_block: BlockReader | None = None,
    shared: Path | None = None,
    invariant: bool = False,
) -> Judge:
    """Returns the judge of a part, ready for requests.

    model_path: folder of its model (`manifest.judge_model_path`); None for a judge without one.
    read_block: reads a Prefect block, for a key that is in one.
    shared: the folder in which all processes of a home keep the limits and circuits of endpoints; None: not shared.
    invariant: whether a verdict must have the same bits in every batch, if its engine can see to it.

    Raises `ConfigurationError` for a model that cannot be used, and for a key that is not where the spec says.
    """
    match part:
        case EndpointPart():
            from yatt_core.judges.endpoint import EndpointJudge

            return EndpointJudge(part, read_block, shared)
        case RewardModelPart():
            from yatt_core.judges.reward_model import RewardModelJudge

            return RewardModelJudge(part, _given(part.name, model_path))
        case GenerativePart():
            return _generative(part, part.engine, model_path, invariant)


def _generative(part: GenerativePart, engine: JudgeEngineSpec, model_path: str | None, invariant: bool) -> Judge:
    match engine:
        case VirtualJudge():
            from yatt_core.judges.virtual import VirtualJudgeEngine

            return VirtualJudgeEngine(part, engine)
        case TorchJudge():
            from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
            from yatt_core.judges.codec import open_judge_codec
            from yatt_core.judges.generative import GenerativeJudge

            path = _given(part.name, model_path)
            codec = open_judge_codec(path, part.template, part.max_new_tokens)
            torch_engine = TorchRolloutEngine(
                model_path=path,
                dtype=engine.dtype,
                max_prompt_tokens=codec.longest,
                max_new_tokens=part.max_new_tokens,
                inputs_folder=Path(path),
                folder_version=0,
            )
            return GenerativeJudge(part, torch_engine, codec)
        case VllmRollout():
            from yatt_core.engines.rollout.served.engine import ServedRolloutEngine
            from yatt_core.engines.rollout.vllm.launch import VLLM_LAUNCH
            from yatt_core.judges.codec import open_judge_codec
            from yatt_core.judges.generative import GenerativeJudge

            path = _given(part.name, model_path)
            codec = open_judge_codec(path, part.template, part.max_new_tokens)
            vllm_engine = ServedRolloutEngine(
                launch=VLLM_LAUNCH,
                model_path=path,
                spec=engine,
                max_prompt_tokens=codec.longest,
                max_new_tokens=part.max_new_tokens,
                folder_version=0,
                invariant=invariant,
            )
            return GenerativeJudge(part, vllm_engine, codec)


def _given(name: str, model_path: str | None) -> str:
    if model_path is None:
        raise ConfigurationError(
            f"rewards.parts {name!r}: its judge needs a model, but the inputs contain no folder for it"
        )
    return model_path
