"""Reward models: their scores match those of transformers, whatever else is in the batch."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tests.judges.parts import ADAPTER, item, verdicts
from tests.spec.trees import spec
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.input_building.judge_models import check_before_start
from yatt_core.judges.registry import build_judge
from yatt_core.models.tokenizer import PAD_ID, save_tokenizer, train_tokenizer
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.protocols.judges import aggregate
from yatt_core.rewards.scoring import RewardScorer, Scored
from yatt_core.spec.rewards.scheme import RewardSpec
from yatt_core.spec.sections.model import TokenizerSpec

ITEMS = [
    item(n, response, prompt)
    for n, (prompt, response) in enumerate(
        [("sun", "nus"), ("moon", "noom"), ("cat", "tac"), ("ox", "x"), ("sun", ""), ("cat", "dog")]
    )
]


def make_folder(folder, labels=1, pad=None, kind="qwen2", positions=64):
    from transformers import AutoConfig, AutoModelForSequenceClassification

    tokenizer = train_tokenizer(
        TokenizerSpec(), ["sun nus", "cat moon", "ox dog"], ["abcdefghijklmnopqrstuvwxyz :0123456789"]
    )
    folder.mkdir()
    save_tokenizer(tokenizer, folder, positions)
    torch.manual_seed(0)
    sizes = {"hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"num_key_value_heads": 2} if kind == "qwen2" else {}
    config = AutoConfig.for_model(
        kind,
        vocab_size=tokenizer.get_vocab_size(),
        num_labels=labels,
        max_position_embeddings=positions,
        pad_token_id=pad,
        **sizes,
        **more,
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return folder


def part(folder, **changes):
    whole = {"kind": "reward_model", "name": "judge", "model": {"kind": "folder", "path": str(folder)}}
    return ADAPTER.validate_python({**whole, **changes})


@pytest.mark.parametrize(("kind", "pad"), [("qwen2", None), ("qwen2", PAD_ID), ("bert", PAD_ID)])
def test_scores_are_those_of_transformers_and_independent_of_the_batch(tmp_path, kind, pad):
    from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

    folder = make_folder(tmp_path / "m", pad=pad, kind=kind)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    judge = build_judge(part(folder), str(folder))
    whole = verdicts(judge, *ITEMS)
    for one in ITEMS:
        messages = [{"role": "user", "content": one.prompt}, {"role": "assistant", "content": one.response}]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected = float(model(input_ids=ids).logits[0, 0])
        judgement = whole[one.number].judgements[0]
        assert judgement.score == pytest.approx(expected, abs=1e-5)
        assert (judgement.answer, judgement.tokens, judgement.prompt_tokens) == ("", 0, ids.shape[1])
        assert verdicts(judge, one) == {one.number: whole[one.number]}
    assert verdicts(build_judge(part(folder, batch_tokens=8), str(folder)), *ITEMS[::-1]) == whole
    assert judge.capabilities == {"deterministic": True, "batch_invariant": True}


def test_a_template_a_logistic_score_and_a_bound(tmp_path):
    folder = make_folder(tmp_path / "m")
    plain = verdicts(build_judge(part(folder, template="{prompt}: {response}"), str(folder)), *ITEMS)
    squashed = build_judge(part(folder, template="{prompt}: {response}", score="sigmoid", max_tokens=12), str(folder))
    said = verdicts(squashed, *ITEMS, item(9, "x" * 20))
    for one in ITEMS:
        logit = plain[one.number].judgements[0].score
        assert said[one.number].judgements[0].score == pytest.approx(1 / (1 + math.exp(-logit)))
    assert said[9].error.startswith("data: prompt and response have ") and "room for 12" in said[9].error


def test_a_response_that_a_reward_model_fails_on_has_no_score_by_default(tmp_path):
    folder = make_folder(tmp_path / "m")
    said = verdicts(build_judge(part(folder, max_tokens=12), str(folder)), item(1), item(2, "x" * 20))
    prompt = Prompt(0, 0, "p", "sun", "nus", {})
    completion = Completion.of_turns("nus", ["nus"], 3)
    response = Scored(prompt, completion)

    def scored(number, **changes):
        judge = part(folder, max_tokens=12, **changes)
        function = {"name": "right", "function": "exact_match"}
        scorer = RewardScorer(RewardSpec.model_validate({"parts": [function, judge.model_dump()]}))
        (outcomes,) = scorer.outcomes("response", [response])
        return scorer.total(response, outcomes, {"judge": aggregate(judge, said[number])})

    fine = scored(1)
    assert (fine.missing, fine.correct) == ((), True) and fine.total == pytest.approx(1 + fine.parts["judge"])
    masked = scored(2)
    assert (masked.missing, masked.total, masked.correct) == (("judge/data",), 0.0, False)
    assert masked.error.startswith("judge: data: prompt and response have ")
    assert (scored(2, on_failure="zero").missing, scored(2, on_failure="zero").total) == ((), 1.0)
    with pytest.raises(DataError, match="reward part 'judge'"):
        scored(2, on_failure="stop")


def test_a_classifier_of_several_classes_is_no_reward_model(tmp_path):
    folder = make_folder(tmp_path / "m", labels=3)
    with pytest.raises(ConfigurationError, match=r"3 outputs.*num_labels: 1"):
        build_judge(part(folder), str(folder))


@pytest.mark.parametrize(
    ("labels", "template", "said"),
    [
        ({"0": "bad", "1": "good"}, "{response}", "has 2 outputs"),
        (None, "{response}", "has 2 outputs"),
        (["good"], "{response}", "has invalid labels.*id2label"),
        ({"0": "LABEL_0"}, None, "no chat template"),
    ],
)
def test_a_folder_that_is_no_reward_model_is_refused_before_the_start(tmp_path, labels, template, said):
    folder = make_folder(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "id2label": labels}))
    (folder / "chat_template.jinja").unlink()
    rewards = {"parts": [{"name": "exact", "function": "exact_match"}, part(folder, template=template).model_dump()]}
    with pytest.raises(ConfigurationError, match=f"rewards.parts 'judge': .*{said}"):
        check_before_start(spec(rewards=rewards))


def test_a_model_without_a_head_is_refused(judged):
    folder = judged[1]
    with pytest.raises(ConfigurationError, match=r"the weights lack .* score\.weight"):
        build_judge(part(folder), str(folder))
