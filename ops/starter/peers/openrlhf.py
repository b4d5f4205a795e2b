"""OpenRLHF's PPO trainer (`train_ppo_ray`): what its arguments mean in a spec. The algorithm is in `openrlhf_algorithm`.

Consumes a draft with OpenRLHF's keys, and options. Writes into the draft. Raises `ConfigurationError`.

`rollout.batch_size` is of prompts, `train.batch_size` of responses: an iteration has `rollout.batch_size` x
`n_samples_per_prompt` / `train.batch_size` steps. The learning rate changes with each step, in YATT with each iteration.
"""

from __future__ import annotations

import math
import re
from typing import Any

from ops.starter.peers import common
from ops.starter.peers.draft import Draft
from ops.starter.peers.openrlhf_algorithm import write_algorithm
from ops.starter.peers.places import TranslationOptions, source_of
from ops.starter.peers.reasons import OFF, OPENRLHF_REASONS
from ops.starter.peers.total_length import total_length
from yatt_core.counting import many


def translate(draft: Draft, options: TranslationOptions) -> None:
    """Writes the spec of a reinforcement-learning run."""
    beginning(draft)
    common.model(draft, "actor.model_name_or_path", options)
    sources(draft, options, ("data.prompt_dataset", "data.prompt_probs", "data.prompt_split"), _fields(draft))
    _sampling(draft, options)
    per_iteration = _batches(draft)
    write_algorithm(draft, options)
    optimizer(draft, "actor.")
    steps = _length(draft, options, per_iteration)
    schedule(draft, "actor.", steps, per_iteration)
    devices = draft.number("actor.num_nodes", 1) * draft.number("actor.num_gpus_per_node", 1)
    for key in ("actor.num_nodes", "actor.num_gpus_per_node"):
        draft.takes(key, {"trainer.engine.ranks": devices}, many(devices, "device"))
    engine(draft, devices, "actor.")
    _vllm(draft, devices)
    surveys(draft, 1)
    _evaluation(draft)
    common.off(draft, OFF["openrlhf"])
    draft.finish(OPENRLHF_REASONS)


def beginning(draft: Draft) -> None:
    """Writes name and seed, and lists what stands around the run."""
    common.surroundings(draft)
    draft.takes("train.seed", {"seed": draft.number("train.seed")}, "another order and other samples than OpenRLHF's")
    if draft.given("logger.wandb.run_name"):
        draft.takes("logger.wandb.run_name", {"name": draft["logger.wandb.run_name"]}, "in the form of a run's name")
    draft.takes("logger.wandb.project", {"tracking.experiment": draft["logger.wandb.project"]})


def sources(draft: Draft, options: TranslationOptions, keys: tuple[str, str, str], fields: dict[str, Any]) -> None:
    """Writes the data sets.

    keys: of the data sets, separated by commas, of their probabilities, and of their split.
    fields: keys of the source that say what OpenRLHF reads in a row.
    """
    names = str(draft[keys[0]]).split(",") if draft[keys[0]] is not None else []
    found = [{**source_of(name.strip(), options.folder, None, draft[keys[2]]), **fields} for name in names]
    weights = [] if draft[keys[1]] is None else [float(part) for part in str(draft[keys[1]]).split(",")]
    if weights and len(weights) != len(found):
        draft.refuse(keys[1], f"expected {len(found)} probabilities, one for each data set")
    for source, weight in zip(found, weights, strict=False):
        source["weight"] = weight
    read = ("data.input_key", "data.label_key", "data.output_key", "data.apply_chat_template", "data.input_template")
    pairs = ("data.prompt_key", "data.chosen_key", "data.rejected_key", "data.multiturn")
    common.sources(draft, [*keys, *read, *pairs], found, options)


def prompt_fields(draft: Draft, key: Any) -> dict[str, Any]:
    """Returns the keys of a source for the prompt.

    key: of the prompt in a row.

    Without the chat template OpenRLHF gives the model the text as it is, or within a template.
    """
    template = draft["data.input_template"]
    if draft.truth("data.apply_chat_template"):
        return {"prompt_field": key}
    if not isinstance(template, str) or "{}" not in template:
        return {"prompt_field": key, "rendered": True}
    if not re.fullmatch(r"[A-Za-z_]\w*", str(key)):
        draft.refuse("data.input_template", f"the key {key!r} cannot stand in a template of YATT; rename it")
    return {"prompt_field": None, "prompt_template": template.replace("{}", "{{ " + str(key) + " }}"), "rendered": True}


def _fields(draft: Draft) -> dict[str, Any]:
    label = draft["data.label_key"]
    fields = prompt_fields(draft, draft["data.input_key"])
    return {**fields, "answer_field": label} if label is not None else fields


def _sampling(draft: Draft, options: TranslationOptions) -> None:
    draft.takes(
        "rollout.n_samples_per_prompt", {"rollout.samples_per_prompt": draft.number("rollout.n_samples_per_prompt", 1)}
    )
    draft.takes("rollout.temperature", {"rollout.temperature": draft.real("rollout.temperature")})
    draft.takes("rollout.top_p", {"rollout.top_p": draft.real("rollout.top_p")})
    limit = "rollout.max_new_tokens"
    total = draft.number("data.max_len", 1)
    new = None if draft[limit] is None else draft.number(limit, 1)
    if new is not None:
        draft.takes(limit, {"rollout.max_new_tokens": new})
    if draft["prompt_max_len"] is not None:
        longest = {"data.max_prompt_tokens": draft.number("prompt_max_len", 1)}
        draft.takes("prompt_max_len", longest, "of versions before 0.11; longer prompts are refused")
        draft.takes("data.max_len", {}, "prompt_max_len and the limit of responses decide")
    elif new is not None and new < total:
        what = {"data.max_prompt_tokens": total - new}
        draft.differs("data.max_len", "of prompt and response together; here the prompt has what responses leave", what)
    else:
        total_length(draft, options, "data.max_len", "a response gets what its prompt leaves")


def _batches(draft: Draft) -> int:
    """Writes the sizes of an iteration; returns its number of optimizer steps."""
    prompts = draft.number("rollout.batch_size", 1)
    group = draft.number("rollout.n_samples_per_prompt", 1)
    draft.takes("rollout.batch_size", {"data.prompts_per_iteration": prompts})
    what = "responses of an iteration by train.batch_size"
    count = draft.quotient(prompts * group, draft.number("train.batch_size", 1), what, "train.batch_size")
    if count > prompts:
        draft.refuse(
            "train.batch_size", f"a step would have less than one prompt's {group} responses; expected {group} or more"
        )
    why = f"{many(count, 'optimizer step')} on {draft['train.batch_size']} responses each"
    draft.takes("train.batch_size", {"algorithm.mini_batches": count}, why)
    passes = draft.number("train.max_epochs", 1)
    draft.takes("train.max_epochs", {"algorithm.epochs": passes}, "passes over an iteration's responses")
    return count * passes


def optimizer(draft: Draft, prefix: str) -> None:
    """Writes the optimizer: AdamW.

    prefix: of its keys, such as `actor.`.
    """
    if draft[f"{prefix}optim"] != "adam":
        draft.refuse(f"{prefix}optim", "YATT has AdamW alone; expected adam")
    draft.takes(f"{prefix}optim", {}, "AdamW")
    draft.takes(f"{prefix}adam.lr", {"trainer.optimizer.learning_rate": draft.real(f"{prefix}adam.lr")})
    draft.takes(
        f"{prefix}adam.betas", {"trainer.optimizer.betas": [float(beta) for beta in draft[f"{prefix}adam.betas"]]}
    )
    draft.takes(f"{prefix}adam.eps", {"trainer.optimizer.epsilon": draft.real(f"{prefix}adam.eps")})
    common.decay(draft, f"{prefix}adam.weight_decay")
    norm = f"{prefix}max_norm"
    draft.takes(norm, {"trainer.optimizer.max_grad_norm": common.norm_bound(draft, norm)})


def schedule(draft: Draft, prefix: str, steps: int, per_iteration: int) -> None:
    """Writes the schedule of the learning rate, which OpenRLHF counts in optimizer steps."""
    kinds = {"cosine_with_min_lr": "cosine", "cosine": "cosine", "linear": "linear", "constant": "constant"}
    key = f"{prefix}lr_scheduler"
    kind = "constant" if draft[key] == "constant_with_warmup" else kinds.get(draft[key])
    if kind is None:
        draft.refuse(key, f"YATT has no such schedule; expected one of {', '.join(kinds)}")
    to = {"trainer.schedule.kind": kind}
    if per_iteration > 1 and kind != "constant":
        draft.differs(key, f"the rate is constant within an iteration of {per_iteration} optimizer steps", to)
    else:
        draft.takes(key, to)
    least = f"{prefix}min_lr_ratio"
    if draft[key] == "cosine_with_min_lr":
        draft.takes(least, {"trainer.schedule.min_lr_ratio": draft.real(least)})
    else:
        draft.takes(least, {}, f"{draft[key]} does not read it")
    ratio = f"{prefix}lr_warmup_ratio"
    common.warmup(draft, ratio, math.ceil(draft.real(ratio) * steps), per_iteration)


def used_rows(draft: Draft, key: str, options: TranslationOptions) -> int:
    """Returns the number of rows that OpenRLHF reads of its data.

    key: that counts passes over them.
    """
    most = draft.number("data.max_samples", 1)
    if draft.given("data.max_samples"):
        draft.differs("data.max_samples", "all rows are drawn from; it limits the number of iterations only")
    return min(common.rows(draft, key, options), most)


def _length(draft: Draft, options: TranslationOptions, per_iteration: int) -> int:
    key = "train.num_episodes"
    prompts = draft.number("rollout.batch_size", 1)
    count = common.epochs(draft.number(key, 1), used_rows(draft, key, options), prompts)
    draft.write("iterations", count)
    draft.takes(key, {"iterations": count}, f"{many(draft[key], 'pass')} over the prompts")
    return count * per_iteration


def engine(draft: Draft, devices: int, prefix: str) -> None:
    """Writes the engine that trains, in place of DeepSpeed.

    prefix: of the keys of the trained model.
    """
    draft.write("trainer.engine.kind", "fsdp2")
    draft.write("trainer.engine.ranks", devices)
    if draft["ds.param_dtype"] != "bf16":
        draft.refuse("ds.param_dtype", "YATT computes in bfloat16 or float32; expected bf16")
    draft.takes("ds.param_dtype", {"trainer.engine.dtype": "bfloat16"})
    draft.write("trainer.engine.dtype", "bfloat16")
    if draft.given("bf16"):
        if not draft.truth("bf16"):
            draft.refuse("bf16", "YATT computes in bfloat16 or float32, not in float16; expected true")
        draft.takes("bf16", {"trainer.engine.dtype": "bfloat16"})
    stage = draft.number("ds.zero_stage")
    sharded = {"trainer.engine.reshard_after_forward": stage >= 3}
    draft.takes(
        "ds.zero_stage", sharded, "FSDP2 in place of ZeRO: parameters stay gathered after a forward pass below stage 3"
    )
    checkpointing = f"{prefix}gradient_checkpointing_enable"
    draft.takes(checkpointing, {"trainer.engine.activation_checkpointing": draft.truth(checkpointing)})
    if draft["train.dynamic_batch_enable"]:
        tokens = "train.max_tokens_per_gpu"
        common.micro_batch(draft, tokens, draft.number(tokens, 1))
        draft.takes("train.dynamic_batch_enable", {}, "micro-batches are of tokens in any case")
    if draft["ds.load_in_4bit"]:
        draft.refuse("ds.load_in_4bit", "YATT trains no quantised weights; leave it out")
    names = ("ds.lora.rank", "ds.lora.alpha", "ds.lora.target_modules")
    if draft.number(names[0]):
        common.lora(draft, draft.number(names[0]), draft[names[2]], names)
        if draft["ds.lora.dropout"]:
            draft.differs("ds.lora.dropout", "adapters have no dropout here")


def _vllm(draft: Draft, devices: int) -> None:
    engines = "vllm.num_engines"
    shared = draft.number("vllm.tensor_parallel_size", 1)
    draft.write("rollout.engine.kind", "vllm")
    if draft[engines] is None:
        what = "the actor's devices by those of an engine"
        count = draft.quotient(devices, shared, what, "vllm.tensor_parallel_size")
    else:
        count = draft.number(engines, 1)
    draft.write("rollout.engine.instances", count)
    draft.takes(engines, {"rollout.engine.instances": count})
    draft.takes("vllm.tensor_parallel_size", {"rollout.engine.tensor_parallel_size": shared})
    memory = "vllm.gpu_memory_utilization"
    caching = "vllm.enable_prefix_caching"
    draft.takes(memory, {"rollout.engine.gpu_memory_utilization": draft.real(memory)})
    draft.takes(caching, {"rollout.engine.enable_prefix_caching": draft.truth(caching)})
    if draft.truth("train.async_enable"):
        why = "responses come from the newest weights here, in OpenRLHF from those of one or more steps before"
        draft.differs("train.async_enable", why)


def _evaluation(draft: Draft) -> None:
    """Writes how held-out tasks are answered, if the file says so."""
    count = "eval.n_samples_per_prompt"
    temperature = "eval.temperature"
    if not draft.given(count) and not draft.given(temperature):
        return
    if not draft.real(temperature):
        for key in (count, temperature):
            draft.takes(key, {}, "held-out tasks are answered greedily, once")
        return
    sampling = {"samples": draft.number(count, 1), "temperature": draft.real(temperature)}
    for key, name in ((count, "samples"), (temperature, "temperature")):
        draft.write(f"evaluation.sampling.{name}", sampling[name])
        draft.takes(key, {f"evaluation.sampling.{name}": sampling[name]})


def surveys(draft: Draft, per_iteration: int) -> None:
    """Writes checkpoints, evaluations and trackers."""
    common.saves(draft, "ckpt.save_steps", draft.number("ckpt.save_steps", -1), per_iteration)
    draft.takes("ckpt.max_num", {"checkpoints.keep": draft.number("ckpt.max_num", 1)})
    common.evaluates(draft, "eval.steps", draft.number("eval.steps", -1), per_iteration)
    draft.lacks("eval.dataset", "held-out rows belong to a source (held_out_path, held_out_split)")
