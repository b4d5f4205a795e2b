"""What engines refuse once they open a model's folder is found before a run is created, by the same rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engines.pictures import make_vision_folder
from tests.inputs.example_specs import run_spec, write_jsonl
from tests.models.folders import change_config, make_folder
from yatt_core.engines import device
from yatt_core.engines.folder_check import Opener, check_folder
from yatt_core.errors import ConfigurationError
from yatt_core.input_building import engine_check
from yatt_core.input_building.engine_check import (
    asked_when_opened,
    check_engines,
    check_exact_here,
    exact_obstacles_here,
    folder_remarks,
    small_batches,
)
from yatt_core.input_building.materialise import materialise
from yatt_core.models.config_file import read_config
from yatt_core.models.known_tokens import embedding_rows
from yatt_core.models.loading import load_causal_lm
from yatt_core.models.model_folder import positions_of
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.accelerated import MegatronTrainer
from yatt_core.spec.sections.trainer import TorchTrainer

EXACT = {"parts": [{"name": "exact", "function": "exact_match"}]}
VLLM = {"kind": "vllm", "dtype": "float32"}
JUDGED = {"kind": "generative", "name": "judge", "template": "{response}?"}


def spec_of(folder: Path, tmp_path: Path, **rest: Any) -> RunSpec:
    rows = [{"prompt": f"question {number}", "answer": str(number)} for number in range(12)]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    given = {"rewards": EXACT, "model": {"kind": "folder", "path": str(folder)}, **rest}
    return run_spec(source, **{"data": {"held_out": 2, "probe": 2}, **given})


def change_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3", "gemma3_text", "mistral"])
def test_folders_that_transformers_loads_pass(tmp_path: Path, kind: str) -> None:
    sizes = {"head_dim": 8} if kind in ("qwen3", "gemma3_text") else {}
    folder = make_folder(tmp_path / "model", kind, **sizes)
    load_causal_lm(str(folder), "float32")
    check_engines(spec_of(folder, tmp_path))


@pytest.mark.parametrize(
    "values",
    [
        {"quantization_config": {"quant_method": "fp8"}},
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        {"compression_config": {"quant_method": "compressed-tensors"}},
    ],
)
def test_quantised_folders_are_refused_whoever_opens_them(tmp_path: Path, values: dict[str, Any]) -> None:
    policy = make_folder(tmp_path / "policy")
    folder = make_folder(tmp_path / "model")
    change_config(folder, **values)
    method = next(iter(values.values()))["quant_method"]
    with pytest.raises(ConfigurationError, match=rf"^model\.path: .*quantised \({method}\); expected the model"):
        check_engines(spec_of(folder, tmp_path))
    judge = {**JUDGED, "model": {"kind": "folder", "path": str(folder)}}
    with pytest.raises(ConfigurationError, match=r"^rewards\.parts 'judge': model\.path: .*quantised"):
        check_engines(spec_of(policy, tmp_path, rewards={"parts": [*EXACT["parts"], judge]}))
    served = {**judge, "engine": VLLM}
    check_engines(spec_of(policy, tmp_path, rewards={"parts": [*EXACT["parts"], served]}, exact=False))


def test_a_judges_folder_is_named_by_the_judges_key(tmp_path: Path) -> None:
    policy = make_folder(tmp_path / "policy")
    folder = make_folder(tmp_path / "model")
    (folder / "config.json").unlink()
    judge = {**JUDGED, "model": {"kind": "folder", "path": str(folder)}}
    with pytest.raises(
        ConfigurationError, match=rf"^rewards\.parts 'judge': model\.path: {folder} has no config\.json$"
    ):
        check_engines(spec_of(policy, tmp_path, rewards={"parts": [*EXACT["parts"], judge]}))


def test_a_text_config_that_is_null_is_none(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    change_config(folder, text_config=None)
    assert not list(folder_remarks(spec_of(folder, tmp_path)))
    config = read_config(folder)
    assert embedding_rows(config) == 258 and positions_of(config) == 256


def drop(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda tensors: tensors.pop(name)


def shorten(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda tensors: tensors.update({name: tensors[name][:-1].clone()})


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (drop("model.layers.1.mlp.up_proj.weight"), r"model\.layers\.1\.mlp\.up_proj\.weight is missing"),
        (drop("lm_head.weight"), r"lm_head\.weight is missing"),
        (shorten("model.embed_tokens.weight"), r"embed_tokens\.weight has shape \[257, 16\] instead of \[258, 16\]"),
        (shorten("model.layers.0.self_attn.k_proj.weight"), r"k_proj\.weight has shape \[7, 16\] instead of \[8, 16\]"),
    ],
)
def test_tensors_that_do_not_match_the_config_are_named_as_loading_would_refuse(
    tmp_path: Path, kind: str, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    folder = make_folder(tmp_path / "model", kind, tie_word_embeddings=False, head_dim=8)
    change_weights(folder, change)
    with pytest.raises(ConfigurationError, match=rf"^model\.path: .*{says}"):
        check_engines(spec_of(folder, tmp_path))
    with pytest.raises(ConfigurationError):
        load_causal_lm(str(folder), "float32")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model_type": "nowhere_known"}, "nowhere_known"),
        (
            {"model_type": "nowhere_known", "auto_map": {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}},
            r"does not have models of type 'nowhere_known', and the folder's own code \(auto_map: modeling_x\.XForCausalLM\)",
        ),
        ({"model_type": "t5"}, "cannot be loaded as a causal model"),
    ],
)
def test_types_that_no_engine_knows_are_refused(tmp_path: Path, values: dict[str, Any], says: str) -> None:
    folder = make_folder(tmp_path / "model")
    change_config(folder, **values)
    with pytest.raises(ConfigurationError, match=rf"^model\.path: .*(?:{says})"):
        check_engines(spec_of(folder, tmp_path))


def test_a_folders_own_code_that_is_not_needed_is_a_remark(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "mistral")
    change_config(folder, auto_map={"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"})
    spec = spec_of(folder, tmp_path)
    check_engines(spec)
    (remark,) = folder_remarks(spec)
    assert "modeling_own.OwnForCausalLM" in remark and "never executed" in remark and "mistral" in remark


@pytest.mark.parametrize(("kind", "capped"), [("gemma2", True), ("mistral", False)])
def test_capped_attention_is_remarked(tmp_path: Path, kind: str, capped: bool) -> None:
    folder = make_folder(tmp_path / "model", kind, **({"attn_logit_softcapping": 50.0} if capped else {}))
    assert any("attn_logit_softcapping" in each for each in folder_remarks(spec_of(folder, tmp_path))) == capped


def test_layers_without_attention_are_refused_for_decoding_and_packing(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "lfm2", layer_types=["conv", "full_attention"])
    with pytest.raises(ConfigurationError, match="cannot decode layers of type conv; "):
        check_folder(folder, Opener(generates=True))
    with pytest.raises(ConfigurationError, match="does not support packed samples"):
        check_folder(folder, Opener(trainer=TorchTrainer(packed=True)))
    check_folder(folder, Opener(trainer=TorchTrainer()))


def test_megatron_refuses_other_families_and_unequal_parts(tmp_path: Path) -> None:
    gemma = make_folder(tmp_path / "gemma", "gemma3_text", head_dim=8)
    qwen = make_folder(tmp_path / "qwen")
    with pytest.raises(ConfigurationError, match="trains llama, qwen2, qwen3, but the model is 'gemma3_text'"):
        check_folder(gemma, Opener(trainer=MegatronTrainer(data_parallel_size=1)))
    with pytest.raises(ConfigurationError, match="2 does not divide the model's 1 key/value heads"):
        check_folder(qwen, Opener(trainer=MegatronTrainer(data_parallel_size=1, tensor_model_parallel_size=2)))
    check_folder(qwen, Opener(trainer=MegatronTrainer(data_parallel_size=1)))


@pytest.mark.parametrize(
    ("rollout", "parts", "processors", "asked"),
    [
        ({"engine": VLLM}, EXACT["parts"], False, ["rollout.engine"]),
        ({"engine": VLLM}, EXACT["parts"], True, []),
        ({}, [*EXACT["parts"], {**JUDGED, "engine": VLLM}], False, ["the judge of reward part 'judge'"]),
        ({}, EXACT["parts"], False, []),
    ],
)
def test_engines_of_vllm_on_gpus_are_asked_whether_they_are_exact(
    tmp_path: Path, rollout: dict[str, Any], parts: list[dict[str, Any]], processors: bool, asked: list[str]
) -> None:
    folder = {"kind": "folder", "path": str(tmp_path)}
    parts = [{**part, "model": folder} if part.get("kind") == "generative" else part for part in parts]
    tree = {"rollout": {"max_new_tokens": 6, **rollout}, "rewards": {"parts": parts}}
    spec = spec_of(tmp_path, tmp_path, **tree, exact=True)
    check_exact_here(spec, lambda _: processors)
    assert list(asked_when_opened(spec, lambda _: processors)) == asked
    by_default = spec_of(tmp_path, tmp_path, **tree, exact="auto")
    assert not asked_when_opened(by_default, lambda _: processors), "auto leaves the kernels as they are"
    obstacles = exact_obstacles_here(by_default, lambda _: processors)
    assert [f"({' and '.join(asked)})" in said for said in obstacles] == [True] * bool(asked)


def test_a_type_that_does_not_repeat_its_bits_on_processors_is_refused_there_alone(tmp_path: Path) -> None:
    narrow = {"rollout": {"max_new_tokens": 6, "engine": {**VLLM, "dtype": "bfloat16"}}}
    spec = spec_of(tmp_path, tmp_path, **narrow, exact=True)
    check_exact_here(spec, lambda _: False)
    with pytest.raises(ConfigurationError, match=r"^exact: must be false or auto.*rollout\.engine\.dtype is bfloat16"):
        check_exact_here(spec, lambda _: True)
    by_default = spec_of(tmp_path, tmp_path, **narrow, exact="auto")
    check_exact_here(by_default, lambda _: True)
    assert not by_default.is_exact


@pytest.mark.parametrize(("key", "value"), [("dtype", "bfloat16"), ("kv_cache_dtype", "fp8")])
def test_a_judge_on_vllm_needs_what_the_policys_engine_needs_to_repeat_its_bits(
    tmp_path: Path, key: str, value: str
) -> None:
    folder = {"kind": "folder", "path": str(tmp_path)}
    judge = {**JUDGED, "model": folder, "engine": {**VLLM, key: value}}
    tree = {"rollout": {"max_new_tokens": 6}, "rewards": {"parts": [*EXACT["parts"], judge]}}
    spec = spec_of(tmp_path, tmp_path, **tree, exact=True)
    check_exact_here(spec, lambda _: False)
    with pytest.raises(ConfigurationError, match=f"^exact: .* the judge of reward part 'judge' .*{value}, but"):
        check_exact_here(spec, lambda _: True)


@pytest.mark.parametrize(("kind", "refused"), [("qwen2", False), ("llama", False), ("mistral", True)])
def test_aligned_runs_are_refused_models_that_have_no_kernels(tmp_path: Path, kind: str, refused: bool) -> None:
    folder = make_folder(tmp_path / "model", kind)
    check_engines(spec_of(folder, tmp_path, exact=True))
    with pytest.raises(ConfigurationError, match=r"^exact: aligned .* mistral") if refused else nullcontext():
        check_engines(spec_of(folder, tmp_path, exact="aligned"))


def test_aligned_runs_are_refused_on_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aligned = spec_of(make_folder(tmp_path / "model", "qwen2"), tmp_path, exact="aligned")
    monkeypatch.setattr(device, "own_device", lambda: torch.device("cuda", 0))
    with pytest.raises(ConfigurationError, match=r"^exact: aligned holds on processors alone"):
        check_engines(aligned)
    check_engines(aligned, attached=True)


@pytest.mark.parametrize(("window", "refused"), [(30, True), (100, False)])
@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
def test_a_window_that_the_longest_prompt_reaches_beyond_is_refused(
    tmp_path: Path, kind: str, window: int, refused: bool
) -> None:
    values = {"use_sliding_window": True, "max_window_layers": 0} if kind == "qwen2" else {}
    folder = make_folder(tmp_path / "model", kind, sliding_window=window, **values)
    spec = spec_of(folder, tmp_path)
    check_engines(spec)
    if not refused:
        materialise(spec, tmp_path / "run")
        return
    with pytest.raises(ConfigurationError, match=rf"sliding windows: .* may have \d+ tokens, .* window is {window}"):
        materialise(spec, tmp_path / "run")


def test_more_likely_tokens_than_a_teacher_has_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    given = {"kind": "folder", "path": str(folder)}
    algorithm = {"distillation": {"teachers": [{"model": given}], "top_k": 300}}
    with pytest.raises(ConfigurationError, match=r"algorithm\.distillation\.top_k: 300 is more than the 258 tokens"):
        check_engines(spec_of(folder, tmp_path, algorithm=algorithm))


def test_a_quantised_teacher_is_named_by_its_key(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    teacher = make_folder(tmp_path / "teacher")
    change_config(teacher, quantization_config={"quant_method": "gptq"})
    algorithm = {"distillation": {"teachers": [{"model": {"kind": "folder", "path": str(teacher)}}]}}
    with pytest.raises(ConfigurationError, match=r"^algorithm\.distillation\.teachers\.0\.model\.path: .*gptq"):
        check_engines(spec_of(folder, tmp_path, algorithm=algorithm))


@pytest.mark.parametrize("text", ["question 3", "look at <image_soft> now"])
@pytest.mark.parametrize("rendered", [False, True])
def test_a_token_without_a_row_is_accepted_until_a_row_makes_it(tmp_path: Path, text: str, rendered: bool) -> None:
    folder = make_folder(tmp_path / "model", more=("<image_soft>",), spare=-1)
    rows = [{"prompt": f"question {number}" if number != 3 else text, "answer": "1"} for number in range(12)]
    source = write_jsonl(tmp_path / "rows.jsonl", rows) | {"rendered": rendered}
    spec = spec_of(folder, tmp_path, data={"held_out": 2, "probe": 2, "sources": [source]})
    write_jsonl(tmp_path / "rows.jsonl", rows)
    if not rendered or "<" not in text:  # what a row spells is text, unless it says that it is what the model reads
        assert materialise(spec, tmp_path / "run").vocabulary == 259
        return
    with pytest.raises(Exception, match=r"rows\.jsonl:4 contains '<image_soft>', token 258, .*only 258 rows"):
        materialise(spec, tmp_path / "run")


def test_tokenizers_of_other_models_stay_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", more=("<image_soft>",))
    change_config(folder, vocab_size=200)
    with pytest.raises(
        ConfigurationError, match=r"model\.path: .*the tokenizer has 259 tokens, but the model only 200"
    ):
        materialise(spec_of(folder, tmp_path), tmp_path / "run")
    made = make_folder(tmp_path / "ended", spare=-1)
    with pytest.raises(ConfigurationError, match=r"end-of-sequence token '<\|im_end\|>' is number 257, .* 257 rows"):
        materialise(spec_of(made, tmp_path), tmp_path / "run")
    assert json.loads((made / "config.json").read_text())["vocab_size"] == 257


@pytest.mark.parametrize("sees", [True, False])
@pytest.mark.parametrize("sync", ["merged", "adapter"])
def test_adapters_alone_need_the_names_of_the_folders_tensors(tmp_path: Path, sees: bool, sync: str) -> None:
    """A folder of a model that sees images keeps older names."""
    folder = (make_vision_folder if sees else make_folder)(tmp_path / "model")
    spec = spec_of(folder, tmp_path, trainer={"lora": {"sync": sync, "targets": ["q_proj"]}})
    if not sees or sync == "merged":
        check_engines(spec)
        return
    with pytest.raises(ConfigurationError, match=r"^trainer\.lora\.sync: .*q_proj\.weight .*; expected merged$"):
        check_engines(spec)


@pytest.fixture
def on_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that vLLM's build for machines without accelerators is installed."""
    monkeypatch.setattr(engine_check, "is_installed", lambda kind, given: True)
    monkeypatch.setattr(engine_check, "runs_on_accelerators", lambda kind, given: False)


@pytest.mark.usefixtures("on_processors")
@pytest.mark.parametrize("tools", [None, {"functions": [{"name": "c", "function": "calculator"}], "max_turns": 2}])
def test_a_batch_that_holds_no_longest_prompt_is_refused_with_the_smallest_that_does(
    tmp_path: Path, tools: dict[str, Any] | None
) -> None:
    folder = make_folder(tmp_path / "model", max_position_embeddings=4096)
    longest = 1024 + 6 + (0 if tools is None else 6 + 128)

    def found(batch: int, **engine: Any) -> list[str]:
        rollout = {"engine": {**VLLM, "max_num_batched_tokens": batch, **engine}, "max_new_tokens": 6, "tools": tools}
        return list(small_batches(spec_of(folder, tmp_path, rollout=rollout)))

    assert found(longest) == []
    (line,) = found(longest - 1)
    assert line.startswith(f"rollout.engine.max_num_batched_tokens: {longest - 1} is less than the {longest} tokens ")
    assert line.endswith(f"expected at least {longest}")
    (line,) = found(longest, max_num_seqs=longest + 1)
    assert "max_num_seqs" in line and line.endswith(f"expected at least {longest + 1}")


@pytest.mark.usefixtures("on_processors")
def test_a_judges_batch_holds_all_positions_of_its_model(tmp_path: Path) -> None:
    policy = make_folder(tmp_path / "policy")
    folder = make_folder(tmp_path / "model", max_position_embeddings=512)
    judge = {**JUDGED, "model": {"kind": "folder", "path": str(folder)}}

    def found(batch: int) -> list[str]:
        served = {**judge, "engine": {**VLLM, "max_num_batched_tokens": batch}}
        return list(small_batches(spec_of(policy, tmp_path, rewards={"parts": [*EXACT["parts"], served]})))

    assert found(512) == []
    (line,) = found(511)
    assert line.startswith("rewards.parts.1.engine.max_num_batched_tokens: 511 ") and line.endswith("at least 512")


def test_on_gpus_a_batch_may_be_smaller_than_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_check, "is_installed", lambda kind, given: True)
    monkeypatch.setattr(engine_check, "runs_on_accelerators", lambda kind, given: True)
    folder = make_folder(tmp_path / "model", max_position_embeddings=4096)
    rollout = {"engine": {**VLLM, "max_num_batched_tokens": 256}, "max_new_tokens": 6}
    spec = spec_of(folder, tmp_path, rollout=rollout, exact=False)
    assert list(small_batches(spec)) == []
    monkeypatch.setattr(engine_check, "is_installed", lambda kind, given: False)
    monkeypatch.setattr(engine_check, "runs_on_accelerators", lambda kind, given: False)
    assert list(small_batches(spec)) == [], "of an engine that is not installed, that alone is said"
