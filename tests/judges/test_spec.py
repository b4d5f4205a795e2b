"""The spec of judges: valid settings, refusals and their messages, and settings that rule out exact results."""

from __future__ import annotations

import pytest

from tests.judges.parts import TEMPLATE
from tests.spec.trees import mistakes, spec, tells
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
    ("part", "changes", "facts"),
    [
        (GENERATIVE, {"kind": "genrative"}, ("kind: ", "'genrative'", "'generative'")),
        (GENERATIVE, {"name": "a" * 65}, ("name: ", "'^[a-z][a-z0-9_]{0,63}$'")),
        (GENERATIVE, {"judgement": 2}, ("judgement: ", "'judgements'")),
        (GENERATIVE, {"template": "{prompt}"}, ("template: ", "{response}")),
        (GENERATIVE, {"template": "{response} {anwser}"}, ("template: ", "{anwser}", "{answer}")),
        (GENERATIVE, {"template": "{response.__class__}"}, ("template: ", "{response.__class__}")),
        (GENERATIVE, {"template": "{response!r:>9}"}, ("template: ", "{response!r:>9}")),
        (GENERATIVE, {"template": "{response} {"}, ("template: ", "'{'")),
        (GENERATIVE, {"judgements": 3, "temperature": 0}, ("", "judgements 3", "temperature 0")),
        (GENERATIVE, {"model": None}, ("", "model: {kind: folder, path: ...}")),
        (GENERATIVE, {"engine": {"kind": "virtual"}}, ("", "virtual", "leave model out")),
        (GENERATIVE, {"engine": {"kind": "virtual", "sigma": 6}}, ("engine.sigma: ", "5")),
        (
            GENERATIVE,
            {"engine": {"kind": "virtual", "median_tokens": 1e300}},
            ("engine.median_tokens: ", "1000000000"),
        ),
        (GENERATIVE, {"model": {"kind": "trained"}}, ("model.kind: ", "'trained'", "folder")),
        (GENERATIVE, {"model": {"kind": "from_config"}}, ("model.kind: ", "'from_config'", "folder")),
        (ENDPOINT, {"url": "http://a.example/v1"}, ("", "http://a.example/v1", "allow_http: true")),
        (ENDPOINT, {"url": "ftp://a.example"}, ("url: ", "https://host/path")),
        (ENDPOINT, {"url": "https://a..example/v1"}, ("url: ", "https://host/path")),
        (ENDPOINT, {"url": f"https://{'a' * 64}.example/v1"}, ("url: ", "https://host/path")),
        (ENDPOINT, {"url": "https://a.example/v 1"}, ("url: ", "https://host/path")),
        (ENDPOINT, {"url": "https://a.example/v\n1"}, ("url: ", "https://host/path")),
        (ENDPOINT, {"url": "https://a.example:99999/v1"}, ("url: ", "Port")),
        (ENDPOINT, {"url": "https://a.example:x/v1"}, ("url: ", "Port")),
        (ENDPOINT, {"url": "https://u:secret@a.example"}, ("url: ", "password", "credential")),
        (ENDPOINT, {"url": "https://a.example/v1?key=secret"}, ("url: ", "? or #")),
        (ENDPOINT, {"credential": "sk-secret"}, ("credential: ", "{env: NAME}, {file: PATH}", "must not be written")),
        (ENDPOINT, {"credential": {"env": "A-B"}}, ("credential: env: ", "the name of an environment variable")),
        (ENDPOINT, {"credential": {"env": "A", "file": "/x"}}, ("credential: ", "expected one of")),
        (ENDPOINT, {"credential": {}}, ("credential: ", "expected one of")),
        (ENDPOINT, {"credential": {"file": "key"}}, ("credential: file: ", "expected an absolute path")),
        (ENDPOINT, {"fallbacks": [{"url": "https://a.example/v1/"}]}, ("", "https://a.example/v1", "twice")),
        (
            ENDPOINT,
            {"fallbacks": [{"url": "http://b.example/v1"}]},
            ("fallbacks.0: ", "not encrypted", "allow_http: true"),
        ),
        (
            ENDPOINT,
            {"fallbacks": [{"url": "https://u:secret@b.example"}]},
            ("fallbacks.0.url: ", "password", "credential"),
        ),
        (
            ENDPOINT,
            {"tokens_per_minute": 10, "max_new_tokens": 16},
            ("", "tokens_per_minute 10", "max_new_tokens 16"),
        ),
        (ENDPOINT, {"send_temperature": False, "temperature": 0.5}, ("", "temperature 0.5", "leave temperature out")),
        (ENDPOINT, {"max_tokens_field": "max_output_tokens"}, ("max_tokens_field: ", "'max_completion_tokens'")),
        (REWARD_MODEL, {"template": "{response} {answer}"}, ("template: ", "{response}", "{prompt}")),
    ],
)
def test_what_makes_no_sense_is_refused(part, changes, facts):
    (line,) = mistakes(**with_judge({**part, **changes}, exact=False))
    place, _, rest = line.partition("rewards.parts.1")
    assert place == "" and tells(rest.lstrip(".: "), *facts), line


def test_a_refusal_repeats_no_password():
    said = mistakes(**with_judge({**ENDPOINT, "url": "https://u:secret@a.example"}, exact=False))
    assert "secret" not in "".join(said)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "http://localhost/v1", "http://[::1]:1/v1"])
def test_loopback_needs_no_encryption(url):
    assert spec(**with_judge({**ENDPOINT, "url": f"{url}/"}, exact=False)).rewards.judges[0].url == url


@pytest.mark.parametrize(
    ("part", "facts"),
    [
        (
            ENDPOINT,
            ("'judge'", "endpoint", "seeded"),
        ),
        (
            {**GENERATIVE, "engine": {"kind": "torch", "dtype": "bfloat16"}},
            ("'judge'", "bfloat16", "float32"),
        ),
        (
            {**REWARD_MODEL, "dtype": "bfloat16"},
            ("'judge'", "bfloat16", "float32"),
        ),
    ],
)
def test_a_judge_may_stand_in_the_way_of_exactness(part, facts):
    (line,) = mistakes(**with_judge(part), exact=True)
    assert tells(line, "exact: ", "false", *facts)


@pytest.mark.parametrize("part", [{**ENDPOINT, "seeded": True}, GENERATIVE, REWARD_MODEL])
def test_seeded_and_float32_judges_are_exact(part):
    assert spec(**with_judge(part)).exact_obstacles() == []


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"rewards__parts": [GENERATIVE]}, ("rewards.parts: ", "kind function", "weight 0")),
        (
            with_judge(GENERATIVE, rewards__accuracy_part=""),
            ("rewards.accuracy_part: ", "1"),
        ),
        (with_judge(GENERATIVE, rewards__accuracy_part="judge"), ("rewards.accuracy_part: ", "'judge'")),
    ],
)
def test_a_judge_is_no_measure_of_itself(changes, facts):
    (line,) = mistakes(**changes)
    assert tells(line, *facts)
