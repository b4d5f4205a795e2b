"""OpenRLHF's SFT, DPO and reward-model trainers: what their arguments mean in a spec.

Consumes a draft with OpenRLHF's keys, and options. Writes into the draft. Raises `ConfigurationError`.
"""

from __future__ import annotations

from typing import Any

from ops.starter.peers import common, openrlhf
from ops.starter.peers.draft import Draft
from ops.starter.peers.places import TranslationOptions
from ops.starter.peers.reasons import OFF, OPENRLHF_REASONS
from ops.starter.peers.total_length import total_length
from yatt_core.counting import many

DATA = ("data.dataset", "data.dataset_probs", "data.dataset_split")


def translate_sft(draft: Draft, options: TranslationOptions) -> None:
    """Writes the spec of an SFT run."""
    draft.write("objective.kind", "sft")
    if draft.truth("model.pretrain_mode_enable"):
        draft.refuse(
            "model.pretrain_mode_enable",
            "the prompt is not learnt here; leave it out, or name rows of text with --data",
        )
    fields = openrlhf.prompt_fields(draft, draft["data.input_key"])
    if draft["data.output_key"] is not None:
        fields["answer_field"] = draft["data.output_key"]
    _rows(draft, options, fields, whole_only=True)
    common.off(draft, OFF["openrlhf"])
    draft.finish(OPENRLHF_REASONS)


def translate_dpo(draft: Draft, options: TranslationOptions) -> None:
    """Writes the spec of a DPO run."""
    draft.write("objective.kind", "dpo")
    if draft.truth("model.ipo_enable"):
        draft.refuse("model.ipo_enable", "YATT has DPO's own loss; leave it out")
    if draft["model.nll_loss_coef"]:
        draft.refuse("model.nll_loss_coef", "YATT has DPO's own loss; expected 0")
    for key in ("model.ipo_enable", "model.nll_loss_coef"):
        draft.takes(key, {}, "off, as in YATT")
    draft.takes("model.beta", {"objective.beta": draft.real("model.beta")})
    draft.takes("model.label_smoothing", {"objective.label_smoothing": draft.real("model.label_smoothing")})
    reference = "ref.model_name_or_path"
    if draft.given(reference) and draft[reference] != draft["model.model_name_or_path"]:
        draft.refuse(reference, "the reference is the model before the first step here; expected the same")
    draft.takes(reference, {}, "the model before the first step")
    _rows(draft, options, _pairs(draft), whole_only=False)
    common.off(draft, OFF["openrlhf"])
    draft.finish(OPENRLHF_REASONS)


def translate_rm(draft: Draft, options: TranslationOptions) -> None:
    """Writes the spec of a run that trains a reward model."""
    draft.write("objective.kind", "reward_model")
    if draft["model.loss_type"] not in (None, "sigmoid"):
        draft.refuse("model.loss_type", "YATT has the Bradley-Terry loss; expected sigmoid")
    draft.takes("model.loss_type", {}, "Bradley-Terry, as in YATT")
    _rows(draft, options, _pairs(draft), whole_only=False)
    common.off(draft, OFF["openrlhf"])
    draft.finish(OPENRLHF_REASONS)


def _pairs(draft: Draft) -> dict[str, Any]:
    fields = {"chosen_field": draft["data.chosen_key"], "rejected_field": draft["data.rejected_key"]}
    if draft["data.prompt_key"] is None:
        prompt: dict[str, Any] = {"prompt_field": None}
        if not draft.truth("data.apply_chat_template"):
            prompt["rendered"] = True
    else:
        prompt = openrlhf.prompt_fields(draft, draft["data.prompt_key"])
    return {**prompt, **fields}


def _rows(draft: Draft, options: TranslationOptions, fields: dict[str, Any], whole_only: bool) -> None:
    """Writes what these trainers share: an iteration is an optimizer step."""
    openrlhf.beginning(draft)
    common.model(draft, "model.model_name_or_path", options)
    openrlhf.sources(draft, options, DATA, fields)
    rows = draft.number("train.batch_size", 1)
    draft.takes("train.batch_size", {"data.prompts_per_iteration": rows}, "rows of an optimizer step")
    total_length(draft, options, "data.max_len", "OpenRLHF cuts or leaves out longer rows")
    openrlhf.optimizer(draft, "")
    key = "train.max_epochs"
    passes = draft.number(key, 1)
    count = common.epochs(passes, openrlhf.used_rows(draft, key, options), rows, whole_only)
    draft.write("iterations", count)
    draft.takes(key, {"iterations": count}, f"{many(passes, 'pass')} over the rows")
    openrlhf.schedule(draft, "", count, 1)
    if options.processes is None:
        draft.refuse(
            "train.batch_size",
            "the number of processes, which are the run's devices, is not in the file; give --processes",
        )
    openrlhf.engine(draft, options.processes, "model.")
    openrlhf.surveys(draft, 1)
    draft.takes("ds.packing_samples", {}, "speed only; the batch counts rows")
