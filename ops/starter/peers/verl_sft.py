"""verl's SFT trainer: what its keys mean in a spec.

Consumes a draft with verl's keys, and options. Writes into the draft. Raises `ConfigurationError`.
"""

from __future__ import annotations

from ops.starter.peers import common
from ops.starter.peers.common import PART_OF_SOURCES
from ops.starter.peers.draft import Draft
from ops.starter.peers.places import TranslationOptions, local_path, source_of
from ops.starter.peers.reasons import OFF, VERL_REASONS
from ops.starter.peers.total_length import total_length
from ops.starter.peers.verl import rows_read
from ops.starter.peers.verl_learning import optimizer
from ops.starter.peers.verl_length import write_length
from yatt_core.counting import many

ROWS = {
    "data.messages_key": "prompt_field",
    "data.tools_key": "tools_field",
    "data.prompt_key": "prompt_field",
    "data.response_key": "answer_field",
}
"""What the keys for columns are in a source."""


def translate(draft: Draft, options: TranslationOptions) -> None:
    """Writes the spec of a run that learns demonstrations."""
    common.surroundings(draft)
    draft.write("objective.kind", "sft")
    draft.takes("trainer.project_name", {"tracking.experiment": draft["trainer.project_name"]})
    if draft.given("trainer.experiment_name"):
        draft.takes(
            "trainer.experiment_name", {"name": draft["trainer.experiment_name"]}, "in the form of a run's name"
        )
    common.model(draft, "model.path", options)
    _data(draft, options)
    optimizer(draft, "optim")
    write_length(draft, options, "optim")
    _engine(draft)
    common.saves(draft, "trainer.save_freq", draft.number("trainer.save_freq", -1))
    common.evaluates(draft, "trainer.test_freq", draft.number("trainer.test_freq", -1))
    common.tracking(draft, "trainer.logger", draft["trainer.logger"])
    if draft["trainer.max_ckpt_to_keep"] is not None:
        draft.takes("trainer.max_ckpt_to_keep", {"checkpoints.keep": draft.number("trainer.max_ckpt_to_keep", 1)})
    seed = draft.number("trainer.seed")
    draft.takes("trainer.seed", {"seed": seed}, "the rows come in another order than verl's")
    common.off(draft, OFF["verl"])
    draft.finish(VERL_REASONS)


def _data(draft: Draft, options: TranslationOptions) -> None:
    files = draft["data.train_files"] if draft.given("data.train_files") else []
    found = [source_of(str(file), options.folder) for file in ([files] if isinstance(files, str) else files)]
    rows = _columns(draft)
    for source in found:
        source.update({ROWS[key]: _path(draft, key) for key in rows})
    tests = draft["data.val_files"]
    local = local_path(tests, options.folder) if isinstance(tests, str) and len(found) == 1 else None
    if local is not None:
        found[0]["held_out_path"] = local
    keys = ["data.train_files", *rows, *(["data.val_files"] if local or options.sources else [])]
    common.sources(draft, keys, found, options)
    prompts = draft.number("data.train_batch_size", 1)
    draft.takes("data.train_batch_size", {"data.prompts_per_iteration": prompts}, "rows of an optimizer step")
    total_length(draft, options, "data.max_length", f"verl's truncation is {draft['data.truncation']}")
    if draft.given("data.truncation") and draft["data.truncation"] == "error":
        draft.takes("data.truncation", {}, "longer rows are refused")
    elif draft.given("data.truncation"):
        draft.differs("data.truncation", "longer rows are refused here, not cut")
    rows_read(draft)


def _path(draft: Draft, key: str) -> str:
    """Returns the path of a value in a row: of older versions, a key may have a mapping with the value under another."""
    inner = draft[f"{key.removesuffix('_key')}_dict_keys"]
    return f"{draft[key]}.{inner[0]}" if inner else str(draft[key])


def _columns(draft: Draft) -> list[str]:
    """Returns the keys that say what a row has: a conversation, or a prompt and a response as in older versions."""
    if draft.given("data.prompt_key") or draft.given("data.response_key"):
        for key in ("data.prompt_key", "data.response_key"):
            if not isinstance(draft[key], str):
                draft.refuse(key, "expected the key of a row beside the other's")
        for key in ("data.prompt_dict_keys", "data.response_dict_keys"):
            names = draft[key] or []
            if draft.given(key) and len(names) > 1:
                draft.refuse(key, "expected one key")
            draft.takes(key, {}, PART_OF_SOURCES)
        if draft.truth("data.multiturn.enable"):
            draft.refuse("data.multiturn.enable", "beside data.prompt_key; keep one of them")
        draft.takes("data.multiturn.enable", {}, PART_OF_SOURCES)
        draft.takes("data.messages_key", {}, "data.prompt_key decides")
        return ["data.prompt_key", "data.response_key"]
    draft.takes("data.multiturn.enable", {}, "rows have conversations") if draft.truth(
        "data.multiturn.enable"
    ) else None
    return ["data.messages_key", *(["data.tools_key"] if draft.given("data.tools_key") else [])]


def _engine(draft: Draft) -> None:
    devices = draft.number("trainer.nnodes", 1) * draft.number("trainer.n_gpus_per_node", 1)
    draft.write("trainer.engine.kind", "fsdp2")
    draft.write("trainer.engine.ranks", devices)
    for key in ("trainer.nnodes", "trainer.n_gpus_per_node"):
        draft.takes(key, {"trainer.engine.ranks": devices}, many(devices, "device"))
    draft.takes("engine.dtype", {"trainer.engine.dtype": draft["engine.dtype"]})
    checkpointing = "model.enable_gradient_checkpointing"
    draft.takes(checkpointing, {"trainer.engine.activation_checkpointing": draft.truth(checkpointing)})
    tokens = "data.max_token_len_per_gpu"
    dynamic = "data.use_dynamic_bsz"
    if draft.truth(dynamic):
        common.micro_batch(draft, tokens, draft.number(tokens, 1))
        draft.takes(dynamic, {}, "micro-batches are of tokens in any case")
    keys = ("model.lora_rank", "model.lora_alpha", "model.target_modules")
    if draft.number(keys[0]):
        common.lora(draft, draft.number(keys[0]), draft[keys[2]], keys)
    else:
        draft.takes(keys[0], {}, "all weights are trained, as in YATT by default")
