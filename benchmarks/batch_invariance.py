"""Does a response of the torch rollout engine depend on its batch? How fast is the engine, compared with transformers?

Consumes nothing. Creates small models with seeded weights, answers 160 prompts of mixed lengths in one batch, and
answers them again in other batches: every token and every bit of every log-probability must be the same. Then times
decode batches of two shapes against transformers' own `generate`, each at the best of several runs, on one thread.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers import logging as transformers_logging

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.models.loading import load_causal_lm
from yatt_core.protocols.generation import GenerateRequest, GenerateResult

SEED = 0
MEMBERS = 160
STOP = 1
NEW_TOKENS = 24
MAX_PROMPT = 320
ROUNDS = 7

Members = Sequence[int]
Answer = tuple[bytes, bytes]


def make_model(folder: Path, name: str) -> None:
    """Builds a model with weights large enough that its next token is neither certain nor a coin toss."""
    torch.manual_seed(SEED)
    sizes: dict[str, Any] = {"num_hidden_layers": 2, "max_position_embeddings": 512}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 4}
    makers: dict[str, Callable[[], nn.Module]] = {
        "quickstart": lambda: Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=36, hidden_size=128, intermediate_size=344, tie_word_embeddings=True, **heads, **sizes
            )
        ),
        "grouped": lambda: Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=512,
                hidden_size=256,
                intermediate_size=704,
                num_attention_heads=4,
                num_key_value_heads=2,
                **sizes,
            )
        ),
        "odd": lambda: LlamaForCausalLM(
            LlamaConfig(
                vocab_size=67,
                hidden_size=90,
                intermediate_size=117,
                num_attention_heads=3,
                num_key_value_heads=3,
                **sizes,
            )
        ),
    }
    model: Any = makers[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    model.save_pretrained(folder)


def load_engine(folder: Path) -> TorchRolloutEngine:
    """Loads the engine with the folder's weights as version 0."""
    engine = TorchRolloutEngine(
        model_path=str(folder), dtype="float32", max_prompt_tokens=MAX_PROMPT, max_new_tokens=128, inputs_folder=folder
    )
    engine.update_weights(load_file(folder / "model.safetensors"), 0)
    return engine


def batches() -> Iterator[tuple[str, Members]]:
    """Returns, by case, the members of the batches that are compared with the full batch."""
    rng = np.random.default_rng(SEED)
    for member in range(0, MEMBERS, 8):
        yield "alone", [member]
    for size in (2, 3, 5):
        yield "few", rng.permutation(MEMBERS)[:size].tolist()
    for start in range(0, MEMBERS, 32):
        yield "in_32", list(range(start, start + 32))
    for _ in range(3):
        yield "reordered", rng.permutation(MEMBERS).tolist()


def answers(result: GenerateResult) -> list[Answer]:
    """Returns each row's tokens and log-probabilities as bytes."""
    ends = np.cumsum(result.lengths)[:-1]
    pairs = zip(np.split(result.tokens, ends), np.split(result.log_probs, ends), strict=True)
    return [(tokens.tobytes(), log_probs.tobytes()) for tokens, log_probs in pairs]


def count_mismatches(engine: TorchRolloutEngine, vocabulary: int) -> dict[str, int]:
    """Counts, by case, responses with other tokens than in the full batch, and those with other log-probability bits."""
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(1, 90, MEMBERS)
    lengths[:4] = [1, 8, 200, 300]
    prompts = [rng.integers(2, vocabulary, length).astype(np.int32) for length in lengths]
    seeds = rng.integers(0, 2**63, (MEMBERS, 1)).astype(np.uint64)

    def answer(members: Members) -> list[Answer]:
        chosen = [prompts[member] for member in members]
        return answers(
            engine.generate(
                GenerateRequest(
                    prompts=chosen,
                    seeds=seeds[list(members)],
                    max_new_tokens=NEW_TOKENS,
                    stop_tokens=(STOP,),
                    weight_version=0,
                )
            )
        )

    expected = answer(range(MEMBERS))
    counts: dict[str, int] = {}
    for case, members in [("repeated", range(MEMBERS)), *batches()]:
        for member, (tokens, log_probs) in zip(members, answer(members), strict=True):
            for what, differs in (
                ("tokens", tokens != expected[member][0]),
                ("bits", log_probs != expected[member][1]),
            ):
                key = f"mismatched_{what}_{case}"
                counts[key] = counts.get(key, 0) + int(differs)
    # One group's samples, compared with each sample as a prompt of its own.
    group = seeds[:32].reshape(1, 32)
    together = engine.generate(
        GenerateRequest(
            prompts=[prompts[20]], seeds=group, max_new_tokens=NEW_TOKENS, stop_tokens=(STOP,), weight_version=0
        )
    )
    apart = engine.generate(
        GenerateRequest(
            prompts=[prompts[20]] * 32,
            seeds=group.reshape(32, 1),
            max_new_tokens=NEW_TOKENS,
            stop_tokens=(STOP,),
            weight_version=0,
        )
    )
    pairs = list(zip(answers(together), answers(apart), strict=True))
    counts["mismatched_tokens_group"] = sum(one[0] != other[0] for one, other in pairs)
    counts["mismatched_bits_group"] = sum(one[1] != other[1] for one, other in pairs)
    return counts


def best_rates(work: dict[str, Callable[[], int]]) -> dict[str, float]:
    """Returns tokens per second of each kind of work, the best of interleaved rounds. Each call returns its number of tokens."""
    rates = dict.fromkeys(work, 0.0)
    for _ in range(ROUNDS):
        for name, run in work.items():
            started = time.perf_counter()
            tokens = run()
            rates[name] = max(rates[name], tokens / (time.perf_counter() - started))
    return rates


def throughput(folder: Path, engine: TorchRolloutEngine, prompt: int, new_tokens: int) -> dict[str, float]:
    """Measures tokens per second of the engine, and of `generate` with either cache.

    The work is 16 prompts x 8 samples, none of which ends early.
    """
    model: Any = load_causal_lm(str(folder), "float32")
    rng = np.random.default_rng(SEED)
    prompts = rng.integers(2, 36, (16, prompt)).astype(np.int32)
    seeds = rng.integers(0, 2**63, (16, 8)).astype(np.uint64)
    request = GenerateRequest(
        prompts=list(prompts), seeds=seeds, max_new_tokens=new_tokens, stop_tokens=(), weight_version=0
    )
    ids = torch.from_numpy(prompts.astype(np.int64))

    def generate(**options: Any) -> int:
        with torch.no_grad():
            output: npt.NDArray[np.int64] = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                num_return_sequences=8,
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                pad_token_id=0,
                eos_token_id=None,
                **options,
            ).numpy()
        rows, length = output.shape
        return int(rows * (length - prompt))

    return best_rates(
        {
            "yatt": lambda: len(engine.generate(request).tokens),
            "generate_dynamic": generate,
            "generate_static": lambda: generate(cache_implementation="static", disable_compile=True),
        }
    )


def main() -> None:
    """Measures and prints the report."""
    arguments = argument_parser(__doc__).parse_args()
    before = load_average()
    transformers_logging.disable_progress_bar()
    counts: dict[str, int] = {}
    figures: dict[str, float] = {}
    baselines: dict[str, float] = {}
    details: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, vocabulary in (("quickstart", 36), ("grouped", 512), ("odd", 67)):
            folder = Path(temporary) / name
            make_model(folder, name)
            progress(f"{name}: comparing batches")
            details[name] = count_mismatches(load_engine(folder), vocabulary)
            for key, value in details[name].items():
                counts[key] = counts.get(key, 0) + value
        folder = Path(temporary) / "quickstart"
        for shape, prompt, new_tokens in (("short", 7, 6), ("long", 32, 64)):
            progress(f"timing the {shape} work: {prompt} + {new_tokens} tokens")
            rates = throughput(folder, load_engine(folder), prompt, new_tokens)
            figures[f"tokens_per_s_{shape}"] = rates.pop("yatt")
            baselines |= {f"tokens_per_s_{shape}_{name}": rate for name, rate in rates.items()}
            figures[f"ratio_to_generate_{shape}"] = figures[f"tokens_per_s_{shape}"] / max(rates.values())
    figures = {
        "holds": float(not any(counts.values())),
        "mismatched_tokens": float(sum(value for key, value in counts.items() if "_tokens_" in key)),
        "mismatched_bits": float(sum(value for key, value in counts.items() if "_bits_" in key)),
        **{key: float(value) for key, value in counts.items()},
        **figures,
    }
    report = Report(
        name="batch_invariance",
        figures=figures,
        seeds=[SEED],
        load=[before, load_average()],
        baselines=baselines,
        details=details,
    )
    print_report(report, arguments.json)


if __name__ == "__main__":
    main()
