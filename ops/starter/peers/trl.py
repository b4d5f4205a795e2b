"""What the trainers of TRL have in common: batches of processes, steps, schedule, optimizer, low-rank adapters, data sets.

Consumes a draft with TRL's keys, and options. Writes into the draft. Raises `ConfigurationError` for what has to be asked.

An optimizer step has `per_device_train_batch_size` x `gradient_accumulation_steps` x processes; how many processes there are
is in the launcher, not in the configuration. The learning rate changes with each step, in YATT with each iteration.
"""

from __future__ import annotations

import math
from typing import Any

from ops.starter.peers import common
from ops.starter.peers.draft import Draft
from ops.starter.peers.places import TranslationOptions, source_of
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError

PEFT_TARGETS = ["q_proj", "v_proj"]
"""What PEFT adapts in Llama and Qwen models unless `lora_target_modules` says otherwise."""
CONVERSION = "in the form of a run's name"


def beginning(draft: Draft) -> None:
    """Writes name and seed, and lists what stands around the run."""
    common.surroundings(draft)
    if draft["run_name"] is not None:
        draft.takes("run_name", {"name": draft["run_name"]}, CONVERSION)
    draft.takes("seed", {"seed": draft.number("seed")}, "another order and other samples than TRL's")
    for key in ("remove_unused_columns", "do_train"):
        draft.takes(key, {}, "as in YATT") if draft[key] in (True, False) else None
    if draft["disable_dropout"] is False and draft.given("disable_dropout"):
        draft.differs("disable_dropout", "YATT trains without dropout, which a model's config.json may ask for")
    elif draft["disable_dropout"]:
        draft.takes("disable_dropout", {}, "as in YATT")
    for key in ("load_in_4bit", "load_in_8bit"):
        if draft[key]:
            draft.refuse(key, "YATT trains no quantised weights; expected false")
        draft.takes(key, {}, "weights are not quantised, as in YATT")
    if not draft.truth("average_tokens_across_devices"):
        draft.differs("average_tokens_across_devices", "the loss is averaged over the tokens of all devices here")
    else:
        draft.takes("average_tokens_across_devices", {}, "as in YATT")
    if draft["group_by_length"] or draft["train_sampling_strategy"] not in (None, "random"):
        key = "group_by_length" if draft["group_by_length"] else "train_sampling_strategy"
        draft.differs(key, "rows come in a seeded order, whatever their lengths, and never in that of the file")
    else:
        for key in ("group_by_length", "train_sampling_strategy"):
            draft.takes(key, {}, "rows come in a seeded order")


def processes(draft: Draft, options: TranslationOptions) -> int:
    """Returns the number of processes, which multiply the batch."""
    if options.processes is None:
        raise ConfigurationError(
            f"{draft.file}: TRL multiplies per_device_train_batch_size by the number of its processes, which the file does "
            "not say; give it with --processes, such as --processes 1"
        )
    return options.processes


def batch(draft: Draft, options: TranslationOptions) -> int:
    """Returns the size of an optimizer step in rows, or in completions."""
    each = draft.number("per_device_train_batch_size", 1)
    return each * draft.number("gradient_accumulation_steps", 1) * processes(draft, options)


def batch_keys(draft: Draft, options: TranslationOptions, to: dict[str, Any], what: str) -> None:
    """Lists the keys that the size of a batch follows from.

    to: what is written for them. what: the size in words.
    """
    count = options.processes
    each = draft["per_device_train_batch_size"]
    steps = draft["gradient_accumulation_steps"]
    why = f"{each} x {steps} x {many(count or 1, 'process')}: {what}"
    draft.takes("num_processes", {}, many(count or 1, "process"))
    draft.takes("per_device_train_batch_size", to, why)
    draft.takes("gradient_accumulation_steps", {}, why)


def model(draft: Draft, options: TranslationOptions) -> None:
    """Writes the model, its precision and adapters."""
    revision = draft["model_revision"]
    common.model(draft, "model_name_or_path", options, None if revision == "main" else revision)
    draft.takes("model_revision", {}, "part of model")
    for key in ("dtype", "torch_dtype"):
        draft.lacks(key, "YATT keeps trained weights in float32; the engines' dtype is the precision of computation")
    _precision(draft)
    keys = ("lora_r", "lora_alpha", "lora_target_modules")
    if not draft.truth("use_peft"):
        draft.takes("use_peft", {}, "all weights are trained")
        for key in (*keys, "lora_dropout", "use_rslora", "use_dora"):
            draft.takes(key, {}, "without effect: use_peft is false")
        return
    draft.takes("use_peft", {}, "trainer.lora")
    common.lora(draft, draft.number(keys[0], 1), draft[keys[2]] or PEFT_TARGETS, keys)
    if draft.real("lora_dropout"):
        draft.differs("lora_dropout", "adapters have no dropout here")
    for key in ("use_rslora", "use_dora"):
        if draft[key]:
            draft.refuse(key, "YATT has plain low-rank adapters alone; expected false")
        draft.takes(key, {}, "off, as in YATT")


def _precision(draft: Draft) -> None:
    if draft["fp16"]:
        draft.refuse("fp16", "YATT computes in bfloat16 or float32; expected false")
    half = draft["bf16"] is None or draft.truth("bf16")
    draft.write("trainer.engine.dtype", "bfloat16" if half else "float32")
    draft.takes(
        "bf16", {"trainer.engine.dtype": "bfloat16" if half else "float32"}, "of computation; weights stay in float32"
    )
    draft.takes("fp16", {}, "bf16 decides")


def engine(draft: Draft, options: TranslationOptions) -> None:
    """Writes the engine that trains, on as many devices as TRL has processes."""
    draft.write("trainer.engine.kind", "fsdp2")
    draft.write("trainer.engine.ranks", options.processes)
    checkpointing = draft.truth("gradient_checkpointing")
    draft.takes("gradient_checkpointing", {"trainer.engine.activation_checkpointing": checkpointing})


def sources(draft: Draft, options: TranslationOptions, fields: dict[str, Any], why: str) -> None:
    """Writes the data set.

    fields: keys of the source that say what TRL reads in a row.
    """
    keys = ["dataset_name", "dataset_config", "dataset_train_split"]
    if draft.given("datasets"):
        keys[0] = "datasets"
        found = [_mixed(draft, item, options) for item in draft["datasets"]]
    elif isinstance(draft["dataset_name"], str):
        split = draft["dataset_train_split"]
        found = [source_of(draft["dataset_name"], options.folder, draft["dataset_config"], split)]
    else:
        found = []
    evaluates = draft["eval_strategy"] not in ("no", False)
    if evaluates and len(found) == 1 and "split" in found[0]:
        found[0]["held_out_split"] = draft["dataset_test_split"]
    if evaluates:
        keys.append("dataset_test_split")
    else:
        draft.takes("dataset_test_split", {}, "without effect: eval_strategy is no")
    common.sources(draft=draft, keys=keys, found=[{**source, **fields} for source in found], options=options, why=why)


def _mixed(draft: Draft, item: Any, options: TranslationOptions) -> dict[str, Any]:
    """Returns a data set of a mixture."""
    if not isinstance(item, dict) or not isinstance(item.get("path"), str):
        draft.refuse("datasets", "expected a list of data sets, each with its path")
    further = set(item) - {"path", "name", "split"}
    if further:
        draft.refuse(
            "datasets",
            f"{', '.join(sorted(further))} of {item['path']} cannot be kept; leave it out, or name files with --data",
        )
    return source_of(item["path"], options.folder, item.get("name"), item.get("split", "train"))


def optimizer(draft: Draft) -> None:
    """Writes the optimizer: AdamW."""
    name = draft["optim"]
    if name is not None and not str(name).startswith("adamw_torch"):
        draft.refuse("optim", "YATT has AdamW alone; expected adamw_torch or adamw_torch_fused")
    draft.takes("optim", {}, "AdamW")
    draft.takes("learning_rate", {"trainer.optimizer.learning_rate": draft.real("learning_rate")})
    betas = [draft.real("adam_beta1"), draft.real("adam_beta2")]
    for key in ("adam_beta1", "adam_beta2"):
        draft.takes(key, {"trainer.optimizer.betas": betas})
    draft.takes("adam_epsilon", {"trainer.optimizer.epsilon": draft.real("adam_epsilon")})
    common.decay(draft, "weight_decay")
    draft.takes("max_grad_norm", {"trainer.optimizer.max_grad_norm": common.norm_bound(draft, "max_grad_norm")})


def length(draft: Draft, options: TranslationOptions, prompts: int, per_iteration: int, whole_only: bool) -> int:
    """Writes the number of iterations; returns that of optimizer steps.

    prompts: rows of an iteration.
    whole_only: whether the last, smaller batch of a pass is left out.
    """
    steps = draft.number("max_steps", -1)
    if steps > 0:
        draft.takes("max_steps", common.iterations(draft, steps, per_iteration, "max_steps"), "optimizer steps")
        draft.takes("num_train_epochs", {}, "without effect beside max_steps")
        return steps
    draft.takes("max_steps", {}, "num_train_epochs decides")
    passes = draft.real("num_train_epochs")
    count = common.epochs(passes, common.rows(draft, "num_train_epochs", options), prompts, whole_only)
    draft.takes("num_train_epochs", {"iterations": count}, f"{many(passes, 'pass')} over the rows")
    draft.write("iterations", count)
    return count * per_iteration


def schedule(draft: Draft, steps: int, per_iteration: int) -> None:
    """Writes the schedule of the learning rate, which TRL counts in optimizer steps."""
    kinds = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
    kind = draft["lr_scheduler_type"]
    further = draft.below("lr_scheduler_kwargs") or draft["lr_scheduler_kwargs"] or {}
    if kind == "cosine_with_min_lr":
        ratio = further.get("min_lr_rate")
        if ratio is None:
            draft.refuse("lr_scheduler_type", "expected lr_scheduler_kwargs with min_lr_rate beside it")
        draft.takes(
            "lr_scheduler_type", {"trainer.schedule.kind": "cosine", "trainer.schedule.min_lr_ratio": float(ratio)}
        )
        draft.takes("lr_scheduler_kwargs", {}, "part of trainer.schedule")
    elif kind in kinds:
        to = {"trainer.schedule.kind": kinds[kind]}
        if per_iteration > 1 and kinds[kind] != "constant":
            draft.differs(
                "lr_scheduler_type", f"the rate is constant within an iteration of {per_iteration} optimizer steps", to
            )
        else:
            draft.takes("lr_scheduler_type", to)
    else:
        draft.refuse("lr_scheduler_type", f"YATT has no such schedule; expected one of {', '.join(kinds)}")
    if kind in kinds and further:
        given = next(iter(draft.below("lr_scheduler_kwargs")), None)
        key = "lr_scheduler_kwargs" if given is None else f"lr_scheduler_kwargs.{given}"
        draft.refuse(key, f"{kind} has no options here; leave it out")
    warmups(draft, steps, per_iteration)


def warmups(draft: Draft, steps: int, per_iteration: int) -> None:
    """Writes the warmup: `warmup_steps`, which is a fraction below 1, or the older `warmup_ratio`."""
    if draft.given("warmup_ratio"):
        common.warmup(draft, "warmup_ratio", math.ceil(draft.real("warmup_ratio") * steps), per_iteration)
        if draft.given("warmup_steps") and draft["warmup_steps"]:
            draft.refuse("warmup_steps", "beside warmup_ratio; keep one of them")
        draft.takes("warmup_steps", {}, "warmup_ratio decides")
        return
    given = draft.real("warmup_steps") if draft["warmup_steps"] is not None else 0.0
    count = math.ceil(given * steps) if given < 1 else int(given)
    common.warmup(draft, "warmup_steps", count, per_iteration)


def surveys(draft: Draft, steps: int, per_iteration: int) -> None:
    """Writes checkpoints, evaluations and trackers."""
    saving = draft["save_strategy"]
    every = _steps(draft["save_steps"], steps) if saving == "steps" else -1
    common.saves(draft, "save_steps", every, per_iteration)
    draft.takes("save_strategy", {}, "checkpoints.every")
    if draft["save_total_limit"] is not None:
        draft.takes("save_total_limit", {"checkpoints.keep": draft.number("save_total_limit", 1)})
    strategy = draft["eval_strategy"]
    if strategy in ("no", False):
        common.evaluates(draft, "eval_strategy", 0)
        draft.takes("eval_steps", {}, "without effect: eval_strategy is no")
    elif strategy == "steps":
        draft.takes("eval_strategy", {}, "evaluation.every")
        interval = draft["eval_steps"] if draft["eval_steps"] is not None else draft["logging_steps"]
        common.evaluates(draft, "eval_steps", _steps(interval, steps), per_iteration)
    else:
        draft.differs("eval_strategy", "evaluations come after a number of iterations; evaluation.every is the default")
    common.tracking(draft, "report_to", draft["report_to"])


def _steps(value: Any, steps: int) -> int:
    """Returns a number of steps; below 1 it is a fraction of all."""
    return int(value) if float(value) >= 1 else math.ceil(float(value) * steps)
