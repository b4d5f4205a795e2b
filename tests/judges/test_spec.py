"""The spec of judges: what can be said, what is refused and how, and what stands in the way of exactness."""

from __future__ import annotations

import pytest

from tests.judges.parts import TEMPLATE
from tests.spec.trees import mistakes, spec
from yatt_core.spec.rewards.scheme import FunctionPart

FOLDER = {"kind": "folder", "path": "judge"}
GENERATIVE = {"kind": "generative", "name": "judge", "model": FOLDER, "template": TEMPLATE}
ENDPOINT = {"kind": "endpoint", "name": "judge", "url": "https://a.example/v1", "model": "m", "template": TEMPLATE}
REWARD_MODEL = {"kind": "reward_model", "name": "judge", "model": FOLDER}


def with_judge(part, **changes):
    rule = {"name": "exact", "function": "exact_match", "weight": 0.0}
    return {"rewards__parts": [rule, part], **changes}


def test_a_part_without_a_kind_is_a_function_and_says_so_when_it_is_read_again():
    made = spec()
    assert isinstance(made.rewards.parts[0], FunctionPart)
    assert made.model_dump(mode="json")["rewards"]["parts"][0]["kind"] == "function"


@pytest.mark.parametrize("part", [GENERATIVE, ENDPOINT, REWARD_MODEL], ids=lambda part: part["kind"])
def test_judges_stand_beside_functions(part):
    made = spec(**with_judge(part), exact=False)
    assert [part.name for part in made.rewards.functions] == ["exact"]
    assert [part.name for part in made.rewards.judges] == ["judge"]
    assert made.accuracy_part == "exact"


@pytest.mark.parametrize(
    ("part", "changes", "line"),
    [
        (GENERATIVE, {"kind": "genrative"}, "kind: unknown kind 'genrative'; did you mean 'generative'?"),
        (GENERATIVE, {"name": "a" * 65}, "name: String should match pattern"),
        (GENERATIVE, {"judgement": 2}, "judgement: unknown key; did you mean 'judgements'?"),
        (GENERATIVE, {"template": "{prompt}"}, "the template does not show the response"),
        (GENERATIVE, {"template": "{response} {anwser}"}, "unknown placeholder {anwser}"),
        (GENERATIVE, {"template": "{response.__class__}"}, "is more than a name"),
        (GENERATIVE, {"template": "{response!r:>9}"}, "placeholder {response!r:>9} is more than a name"),
        (GENERATIVE, {"template": "{response} {"}, "Single '{'"),
        (GENERATIVE, {"judgements": 3, "temperature": 0}, "judgements 3 at temperature 0 would all be the same"),
        (GENERATIVE, {"model": None}, "a judge needs a model"),
        (GENERATIVE, {"engine": {"kind": "virtual"}}, "a virtual engine has no model"),
        (GENERATIVE, {"engine": {"kind": "virtual", "sigma": 6}}, "sigma: Input should be less than or equal to 5"),
        (
            GENERATIVE,
            {"engine": {"kind": "virtual", "median_tokens": 1e300}},
            "median_tokens: Input should be less than",
        ),
        (GENERATIVE, {"model": {"kind": "trained"}, "parse": {"kind": "number"}}, "a trained judge says yes or no"),
        (GENERATIVE, {"model": {"kind": "trained"}, "max_new_tokens": 256}, "max_new_tokens 256 leaves no room"),
        (
            GENERATIVE,
            {"model": {"kind": "trained", "network": {"kind": "from_config", "vision": {}}}},
            "leave vision out",
        ),
        (ENDPOINT, {"url": "http://a.example/v1"}, "is not encrypted"),
        (ENDPOINT, {"url": "ftp://a.example"}, "write https://host/path"),
        (ENDPOINT, {"url": "https://a..example/v1"}, "write https://host/path"),
        (ENDPOINT, {"url": f"https://{'a' * 64}.example/v1"}, "write https://host/path"),
        (ENDPOINT, {"url": "https://a.example/v 1"}, "write https://host/path"),
        (ENDPOINT, {"url": "https://a.example/v\n1"}, "write https://host/path"),
        (ENDPOINT, {"url": "https://a.example:99999/v1"}, "Port out of range"),
        (ENDPOINT, {"url": "https://a.example:x/v1"}, "Port could not be cast"),
        (ENDPOINT, {"url": "https://u:secret@a.example"}, "an address holds no password"),
        (ENDPOINT, {"url": "https://a.example/v1?key=secret"}, "without ? or #"),
        (ENDPOINT, {"api_key_env": "sk-secret"}, "api_key_env: String should match pattern"),
        (REWARD_MODEL, {"template": "{response} {answer}"}, "and no others"),
    ],
)
def test_what_makes_no_sense_is_refused(part, changes, line):
    said = mistakes(**with_judge({**part, **changes}, exact=False))
    assert len(said) == 1 and said[0].startswith("rewards.parts.1") and line in said[0]


def test_a_refusal_repeats_no_password():
    said = mistakes(**with_judge({**ENDPOINT, "url": "https://u:secret@a.example"}, exact=False))
    assert "secret" not in "".join(said)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "http://localhost/v1", "http://[::1]:1/v1"])
def test_loopback_needs_no_encryption(url):
    assert spec(**with_judge({**ENDPOINT, "url": f"{url}/"}, exact=False)).rewards.judges[0].url == url


@pytest.mark.parametrize(
    ("part", "line"),
    [
        (
            ENDPOINT,
            "the judge of reward part 'judge' is an endpoint that is not seeded: asked again it may answer otherwise",
        ),
        (
            {**GENERATIVE, "engine": {"kind": "torch", "dtype": "bfloat16"}},
            "the judge of reward part 'judge' computes in bfloat16, exact needs float32",
        ),
        (
            {**REWARD_MODEL, "dtype": "bfloat16"},
            "the judge of reward part 'judge' computes in bfloat16, exact needs float32",
        ),
    ],
)
def test_a_judge_may_stand_in_the_way_of_exactness(part, line):
    assert mistakes(**with_judge(part)) == [f"exact: set it to false, because {line}"]


@pytest.mark.parametrize("part", [{**ENDPOINT, "seeded": True}, GENERATIVE, REWARD_MODEL])
def test_seeded_and_float32_judges_are_exact(part):
    assert spec(**with_judge(part)).exact_obstacles() == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"rewards__parts": [GENERATIVE]}, "rewards.parts: a part of kind function has to tell right from wrong"),
        (
            with_judge(GENERATIVE, rewards__accuracy_part=""),
            "rewards.accuracy_part: String should have at least 1 character",
        ),
        (with_judge(GENERATIVE, rewards__accuracy_part="judge"), "rewards.accuracy_part: 'judge' is a judge"),
        (
            with_judge({**GENERATIVE, "model": {"kind": "trained"}}, data__probe=0),
            "data.probe: a trained judge stops by its accuracy on probe tasks",
        ),
    ],
)
def test_a_judge_is_no_measure_of_itself(changes, line):
    said = mistakes(**changes)
    assert len(said) == 1 and said[0].startswith(line)
