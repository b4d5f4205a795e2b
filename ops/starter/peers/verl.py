"""verl's `main_ppo`: what its keys mean in a spec. The algorithm is in `verl_algorithm`.

Consumes a draft with verl's keys, and options. Writes into the draft. Raises `ConfigurationError`.

In verl a batch is of prompts: an iteration has `data.train_batch_size`, a step `ppo_mini_batch_size` of them, each with
`rollout.n` responses. The learning rate changes once per iteration, as in YATT.
"""

from __future__ import annotations

from ops.starter.peers import common
from ops.starter.peers.draft import Draft
from ops.starter.peers.places import TranslationOptions, local_path, model_of, source_of
from ops.starter.peers.reasons import OFF, OWN_REWARD, VERL_REASONS
from ops.starter.peers.verl_algorithm import write_algorithm
from ops.starter.peers.verl_engines import MODEL, ROLLOUT, write_engines
from ops.starter.peers.verl_learning import ACTOR, optimizer
from ops.starter.peers.verl_length import write_length
from yatt_core.counting import many

TRUNCATION = {"error": "refuse", "left": "cut_start", "right": "cut_end"}


def translate(draft: Draft, options: TranslationOptions) -> None:
    """Writes the spec of a reinforcement-learning run."""
    common.surroundings(draft)
    for key in ("--config-name", "--config-path", "--config-dir"):
        draft.lacks(key, "Hydra's composition; the defaults are those of verl's own trainer files")
    _names(draft)
    common.model(draft, f"{MODEL}.path", options)
    _data(draft, options)
    _rollout(draft)
    _rewards(draft, options)
    _batches(draft)
    write_algorithm(draft, options)
    optimizer(draft, f"{ACTOR}.optim")
    write_length(draft, options, f"{ACTOR}.optim")
    write_engines(draft)
    _surveys(draft)
    common.off(draft, OFF["verl"])
    draft.finish(VERL_REASONS)


def _names(draft: Draft) -> None:
    draft.takes("trainer.project_name", {"tracking.experiment": draft["trainer.project_name"]})
    if draft.given("trainer.experiment_name"):
        draft.takes(
            "trainer.experiment_name", {"name": draft["trainer.experiment_name"]}, "in the form of a run's name"
        )


def _data(draft: Draft, options: TranslationOptions) -> None:
    _sources(draft, options)
    draft.takes("data.max_prompt_length", {"data.max_prompt_tokens": draft.number("data.max_prompt_length", 1)})
    draft.takes("data.max_response_length", {"rollout.max_new_tokens": draft.number("data.max_response_length", 1)})
    _over_long(draft)
    if draft.truth("data.shuffle"):
        draft.takes("data.shuffle", {}, "prompts come in a seeded order")
    else:
        draft.differs("data.shuffle", "prompts come in a seeded order, epoch by epoch, never in that of the file")
    seed = draft["data.seed"]
    if seed is not None:
        draft.differs("data.seed", "one seed decides everything here, and no seed gives verl's order", {"seed": seed})
    rows_read(draft)


def rows_read(draft: Draft) -> None:
    """Writes how rows are rendered, and lists how many of them are read."""
    for key in ("data.train_max_samples", "data.val_max_samples"):
        if draft.number(key, -1) < 0:
            draft.takes(key, {}, "all rows, as in YATT")
        else:
            draft.differs(key, "all rows are drawn from; it limits the number of iterations only")
    for name, value in draft.below("data.apply_chat_template_kwargs").items():
        draft.takes(f"data.apply_chat_template_kwargs.{name}", {f"data.chat_template_kwargs.{name}": value})


def _sources(draft: Draft, options: TranslationOptions) -> None:
    """Writes the sources; each test file belongs to the training file in the same place of its list."""
    found = [source_of(file, options.folder) for file in listed(draft, "data.train_files")]
    for source in found:
        source["prompt_field"] = draft["data.prompt_key"]
        source["answer_field"] = "reward_model.ground_truth"
        if draft.given("data.image_key"):
            source["image_field"] = draft["data.image_key"]
    tests = listed(draft, "data.val_files")
    paired = not options.sources and len(tests) == len(found)
    if paired:
        common.no_variable(draft, "data.val_files")
        for source, test in zip(found, tests, strict=True):
            source["held_out_path"] = local_path(test, options.folder) or test
    keys = ["data.train_files", "data.prompt_key", "data.image_key"]
    common.sources(draft, [*keys, *(["data.val_files"] if paired or options.sources else [])], found, options)
    if draft.given("data.val_files") and not paired and not options.sources:
        why = "not one for each training file; held-out rows are taken from the end of those"
        draft.differs("data.val_files", why)


def listed(draft: Draft, key: str) -> list[str]:
    """Returns the files that the file names under a key: one, or a list."""
    value = draft[key] if draft.given(key) else None
    return [value] if isinstance(value, str) else [str(one) for one in value or []]


def _over_long(draft: Draft) -> None:
    if draft.truth("data.filter_overlong_prompts"):
        draft.takes("data.filter_overlong_prompts", {"data.over_long": "skip"})
        draft.takes("data.truncation", {}, "without effect: longer prompts are left out")
        return
    draft.takes("data.filter_overlong_prompts", {}, "data.over_long says what happens to longer prompts")
    where = draft["data.truncation"]
    if where not in TRUNCATION:
        draft.lacks("data.truncation", "prompts are cut at one end here; data.over_long refuses longer ones")
    elif where == "error":
        draft.takes("data.truncation", {"data.over_long": "refuse"})
    else:
        why = "verl cuts the rendered prompt with its chat template, YATT the text in it"
        draft.differs("data.truncation", why, {"data.over_long": TRUNCATION[where]})


def _rollout(draft: Draft) -> None:
    draft.takes(f"{ROLLOUT}.n", {"rollout.samples_per_prompt": draft.number(f"{ROLLOUT}.n", 1)})
    draft.takes(f"{ROLLOUT}.temperature", {"rollout.temperature": draft.real(f"{ROLLOUT}.temperature")})
    draft.takes(f"{ROLLOUT}.top_p", {"rollout.top_p": draft.real(f"{ROLLOUT}.top_p")})
    top_k = draft.number(f"{ROLLOUT}.top_k", -1)
    draft.takes(f"{ROLLOUT}.top_k", {"rollout.top_k": top_k if top_k > 0 else None})
    for key, length in (("prompt_length", "data.max_prompt_length"), ("response_length", "data.max_response_length")):
        if draft.given(f"{ROLLOUT}.{key}") and draft[f"{ROLLOUT}.{key}"] != draft[length]:
            draft.refuse(f"{ROLLOUT}.{key}", f"differs from {length} {draft[length]}; expected the same")
        draft.takes(f"{ROLLOUT}.{key}", {}, f"as {length}")
    for key in ("do_sample", "calculate_log_probs"):
        if draft.given(f"{ROLLOUT}.{key}") and draft.truth(f"{ROLLOUT}.{key}"):
            draft.takes(f"{ROLLOUT}.{key}", {}, "as in YATT")
    _validation(draft)


def _validation(draft: Draft) -> None:
    """Writes how held-out tasks are answered: greedily, or by several samples."""
    keys = [f"{ROLLOUT}.val_kwargs.{name}" for name in ("n", "temperature", "top_p", "do_sample")]
    temperature = draft[keys[1]]
    samples = draft[keys[3]]
    if draft.number(f"{ROLLOUT}.val_kwargs.top_k", -1) <= 0:
        draft.takes(f"{ROLLOUT}.val_kwargs.top_k", {}, "from all tokens")
    if not samples or not temperature:
        for key in keys:
            draft.takes(key, {}, "held-out tasks are answered greedily, once")
        return
    count = draft.number(keys[0], 1)
    draft.write("evaluation.sampling.samples", count)
    draft.takes(keys[0], {"evaluation.sampling.samples": count})
    draft.takes(keys[1], {"evaluation.sampling.temperature": draft.real(keys[1])})
    draft.takes(keys[2], {"evaluation.sampling.top_p": draft.real(keys[2])})
    draft.takes(keys[3], {}, "evaluation.sampling says so")


def _rewards(draft: Draft, options: TranslationOptions) -> None:
    """Writes the rewards that the file names, unless `--reward` does."""
    for prefix in ("reward.reward_model", "reward_model"):
        enabled = f"{prefix}.enable"
        path = f"{prefix}.model_path" if prefix == "reward.reward_model" else f"{prefix}.model.path"
        if not draft[enabled]:
            continue
        if not isinstance(draft[path], str):
            draft.refuse(enabled, f"expected {path} with the reward model")
        if options.rewarded:
            draft.differs(enabled, "--reward takes its place")
            draft.differs(path, "--reward takes its place") if draft.given(path) else None
            continue
        common.no_variable(draft, path)
        part = {"name": "reward_model", "kind": "reward_model", "model": model_of(draft[path], options.folder)}
        draft.takes(path, {"rewards.parts": [part]})
        draft.takes(enabled, {}, "the part of kind reward_model")
    for key in ("reward.custom_reward_function", "custom_reward_function"):
        for name in ("path", "name"):
            draft.lacks(f"{key}.{name}", OWN_REWARD)
    for key in ("reward_model.reward_manager", "reward.reward_manager.name"):
        if draft.given(key) and draft[key] in ("naive", "dapo"):
            draft.takes(key, {}, "one score for each response; a length penalty is in algorithm.length_penalty")


def _batches(draft: Draft) -> None:
    prompts = draft.number("data.train_batch_size", 1)
    key = f"{ACTOR}.ppo_mini_batch_size"
    draft.takes("data.train_batch_size", {"data.prompts_per_iteration": prompts})
    count = draft.quotient(prompts, draft.number(key, 1), "data.train_batch_size by ppo_mini_batch_size", key)
    draft.takes(key, {"algorithm.mini_batches": count}, f"{many(count, 'optimizer step')} on {draft[key]} prompts each")
    draft.takes(f"{ACTOR}.ppo_epochs", {"algorithm.epochs": draft.number(f"{ACTOR}.ppo_epochs", 1)})
    if draft.given(f"{ACTOR}.shuffle"):
        draft.differs(f"{ACTOR}.shuffle", "the order of an iteration's mini-batches is YATT's own")


def _surveys(draft: Draft) -> None:
    """Writes checkpoints, evaluations and trackers."""
    common.saves(draft, "trainer.save_freq", draft.number("trainer.save_freq", -1))
    common.evaluates(draft, "trainer.test_freq", draft.number("trainer.test_freq", -1))
    _trains(draft)
    if draft.given("trainer.val_before_train"):
        if draft.truth("trainer.val_before_train"):
            draft.takes("trainer.val_before_train", {}, "iteration 0 is always evaluated")
        else:
            draft.differs("trainer.val_before_train", "iteration 0 is always evaluated")
    keep = "trainer.max_actor_ckpt_to_keep"
    if draft[keep] is not None:
        draft.takes(keep, {"checkpoints.keep": draft.number(keep, 1)})
    common.tracking(draft, "trainer.logger", draft["trainer.logger"])
    if draft["trainer.v1.trainer_mode"] not in ("sync", None):
        why = "responses come from the newest weights here, in verl's asynchronous modes from older ones"
        draft.differs("trainer.v1.trainer_mode", why)
    for key in ("trainer.balance_batch", "trainer.resume_mode"):
        if draft.given(key) and draft[key] in (True, "auto"):
            draft.takes(key, {}, "as in YATT")


def _trains(draft: Draft) -> None:
    """Refuses a run that only validates, as verl's does if it validates before its first step."""
    key = "trainer.val_only"
    first = "trainer.val_before_train"
    if not draft.truth(key):
        draft.takes(key, {}, "off: the run trains")
    elif not draft.truth(first):
        draft.takes(key, {}, f"without effect: {first} is false")
    else:
        draft.refuse(
            key,
            "such a run validates a model and ends, and one of YATT trains; expected false, or in its place "
            "`yatt evaluate RUN --model FOLDER`",
        )
