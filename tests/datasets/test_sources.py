"""Sources: held-out, probe and training prompts never share a question; bad input is named."""

import json
from types import SimpleNamespace

import pytest

from tests.inputs.example_specs import SPELL, SUM, run_spec, write_jsonl
from yatt_core.datasets import gym
from yatt_core.datasets.sources import HELD_OUT_SEED, collect_prompts, normalise
from yatt_core.errors import ConfigurationError, DataError


def collect(*sources, seed=0, **data):
    """Collects all prompts of a spec, with the training prompts read into lists."""
    found = collect_prompts(run_spec(*sources, data=data).data, seed)
    return SimpleNamespace(held_out=found.held_out, probe=found.probe, train=[list(prompts) for prompts in found.train])


def questions(prompts):
    return [normalise(prompt.text) for prompt in prompts]


def rows(count, start=0):
    return [{"prompt": f"What is {i} plus 1?", "answer": str(i + 1)} for i in range(start, start + count)]


def test_a_mixture_of_two_tasks_is_split_without_overlap():
    found = collect({**SPELL, "weight": 3.0}, {**SUM, "weight": 1.0})
    assert [sum(p.source == s for p in found.held_out) for s in (0, 1)] == [45, 15]
    assert [sum(p.source == s for p in found.probe) for s in (0, 1)] == [30, 10]
    train = [prompt for prompts in found.train for prompt in prompts]
    parts = [set(questions(part)) for part in (found.held_out, found.probe, train)]
    assert [len(parts[0]), len(parts[1])] == [60, 40]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    ids = [prompt.prompt_id for prompt in (*found.held_out, *found.probe, *train)]
    assert len(set(ids)) == len(ids)
    for source, prompts in enumerate(found.train):
        assert [(p.source, p.index) for p in prompts] == [(source, i) for i in range(len(prompts))]


def test_words_that_differ_only_in_case_stay_in_one_part():
    found = collect(SPELL, held_out=300)
    cased = {p.text for p in found.held_out}
    drawn = list(gym.entries("spell_backward", SPELL["options"], 20_000_000, 2000))
    folded = {text.lower() for text in cased}
    assert any(row["question"] not in cased and row["question"].lower() in folded for row in drawn)
    assert not folded & {p.text.lower() for p in found.train[0]}


def test_held_out_tasks_are_the_same_for_every_seed_and_training_ones_are_not():
    first = collect(SPELL, seed=0)
    second = collect(SPELL, seed=1)
    assert questions(first.held_out) == questions(second.held_out)
    # The package's neighbouring seeds give the same entries shifted by one; ours do not match at any small shift.
    rows_of = [[row["question"] for row in gym.entries("spell_backward", SPELL["options"], s, 50)] for s in (7, 8)]
    assert rows_of[0][1:] == rows_of[1][:-1]
    a = questions(first.train[0])
    b = questions(second.train[0])
    assert all(a[shift : shift + 100] != b[:100] and b[shift : shift + 100] != a[:100] for shift in range(20))


def test_held_out_entries_match_their_ids():
    prompt = collect(SPELL).held_out[7]
    label, row = prompt.prompt_id.removeprefix("0/held_out/").split(":")
    assert label == "spell_backward"
    entry = list(gym.entries("spell_backward", SPELL["options"], HELD_OUT_SEED, int(row) + 1))[-1]
    assert entry == prompt.entry and prompt.text == entry["question"] and prompt.answer == entry["answer"]


@pytest.mark.parametrize("task", ["arc_1d", "arc_agi", "graph_color", "rearc", "codeio", "knights_knaves", "boxnet"])
def test_entries_survive_json(task):
    """Tuples and non-string keys survive: a task scores a row read from a file exactly as it scores its own entries."""
    dataset = gym.create_task(task, {}, 5, 2)
    for original, row in zip((dataset[0], dataset[1]), gym.entries(task, {}, 5, 2), strict=True):
        answer = original["answer"] or "{}"
        stored = json.loads(json.dumps(row))
        assert gym.score(answer, stored) == dataset.score_answer(answer, original)
        assert {k: v for k, v in gym._unpack(stored).items() if k in original} == original


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({**SPELL, "task": "spell_bakward"}, "no task 'spell_bakward'; did you mean 'spell_backward'"),
        ({**SPELL, "options": {"max_word_length": 4}}, "no option 'max_word_length'; did you mean 'max_word_len'"),
        ({**SPELL, "options": {"seed": 4}}, "option 'seed' is set by the run"),
        ({**SPELL, "options": {"min_word_len": 9, "max_word_len": 4}}, "'spell_backward' .*options .*max_word_len"),
        (
            {**SPELL, "options": {"min_word_len": "long"}},
            "'spell_backward' .*options .*min_word_len.*not supported between",
        ),
        ({"kind": "reasoning_gym", "task": "composite"}, "'composite' .*options {}: .*at least one dataset"),
        ({"kind": "jsonl", "path": "/nowhere/rows.jsonl"}, "/nowhere/rows.jsonl cannot be read: No such file"),
    ],
)
def test_bad_sources_are_configuration_errors(source, message):
    with pytest.raises(ConfigurationError, match=message):
        collect(source)


def test_too_few_distinct_tasks_are_counted():
    with pytest.raises(ConfigurationError, match=r"data\.held_out: 60 of the 60 .*\(coin_flip\), .*only \d+ distinct"):
        collect(
            {"kind": "reasoning_gym", "task": "coin_flip", "size": 50, "options": {"min_trials": 3, "max_trials": 3}}
        )
    with pytest.raises(ConfigurationError, match=r"data\.probe: 40 .*spell_backward\), which has only \d+ distinct"):
        collect({**SPELL, "size": 30})


def test_jsonl_rows_are_split(tmp_path):
    found = collect(write_jsonl(tmp_path / "a.jsonl", rows(100)), held_out=10, probe=5)
    assert questions(found.held_out) == [f"what is {i} plus 1?" for i in range(99, 89, -1)]
    assert questions(found.probe) == [f"what is {i} plus 1?" for i in range(5)]
    assert questions(found.train[0]) == [f"what is {i} plus 1?" for i in range(5, 90)]
    assert found.train[0][0].prompt_id == "0/train/a.jsonl:6"
    assert found.train[0][0].answer == "6" and found.train[0][0].entry == {"prompt": "What is 5 plus 1?", "answer": "6"}


def test_a_held_out_file_keeps_its_questions_out_of_training(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", rows(50))
    write_jsonl(tmp_path / "h.jsonl", [{**row, "prompt": f"  {row['prompt'].upper()} "} for row in rows(10, 5)])
    found = collect({**source, "held_out_path": str(tmp_path / "h.jsonl")}, held_out=10, probe=5)
    assert len(found.train[0]) == 50 - 10 - 5
    assert not set(questions(found.held_out)) & set(questions(found.train[0]))
    assert found.held_out[0].prompt_id == "0/held_out/h.jsonl:1"


def test_two_sources_with_the_same_questions_do_not_leak(tmp_path):
    sources = [write_jsonl(tmp_path / name, rows(60)) for name in ("a.jsonl", "b.jsonl")]
    found = collect(*sources, held_out=10, probe=6)
    train = {q for prompts in found.train for q in questions(prompts)}
    assert len(set(questions(found.held_out))) == 10 and len(set(questions(found.probe))) == 6
    assert not train & set(questions((*found.held_out, *found.probe)))


def test_repeated_training_questions_stay_and_rows_may_lack_an_answer(tmp_path):
    twice = [{"prompt": "Again?"}] * 3
    found = collect(write_jsonl(tmp_path / "a.jsonl", [*rows(3), *twice, *rows(3, 10)]), held_out=2, probe=2)
    assert questions(found.train[0]).count("again?") == 3
    assert [p.answer for p in found.train[0] if p.text == "Again?"] == [None] * 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a"}\n{"prompt": \n', r"a\.jsonl:2: is not a JSON object on one line"),
        (b'{"prompt": ' + b"[" * 100_000 + b"\n", r"a\.jsonl:1: is not a JSON object on one line"),
        (b'{"prompt": "a"}\n\n["b"]\n', r"a\.jsonl:3: .*JSON object.* list"),
        (b'{"prompt": "a"}\n{"promt": "b"}\n', r"a\.jsonl:2: the row has no key 'prompt' .*did you mean 'promt'"),
        (b'{"text": "a", "id": 1}\n', r"a\.jsonl:1: the row has no key 'prompt' .*its keys: text, id"),
        (b'{"prompt": 3}\n', r"a\.jsonl:1: 'prompt' must be .*string"),
        (b'{"prompt": "  "}\n', r"a\.jsonl:1: 'prompt' must be .*string"),
        (b'{"prompt": "a", "answer": {"x": 3}}\n', r"a\.jsonl:1: 'answer' is an object; .*string.*answer\.x"),
        (b'{"prompt": "a", "x": NaN}\n', r"a\.jsonl:1: .*NaN is not a JSON value"),
        (b'{"prompt": "\\ud800"}\n', r"a\.jsonl:1: .*surrogates not allowed"),
        (b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n', r"a\.jsonl:2: is not UTF-8 .*at byte 15"),
        (b"", r"a\.jsonl: the file has no rows"),
        (b"\n  \n", r"a\.jsonl: the file has no rows"),
    ],
)
def test_bad_rows_are_named(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        collect({"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}, held_out=1, probe=1)


def test_too_few_rows_are_counted(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", rows(8))
    with pytest.raises(
        ConfigurationError, match=r"data\.held_out: 10 of the 10 .*\(a\.jsonl\), .*only 8 distinct .*add rows"
    ):
        collect(source, held_out=10, probe=1)
    with pytest.raises(ConfigurationError, match=r"data\.probe: 4 of the 4 .*only 3 distinct"):
        collect(source, held_out=5, probe=4)
    with pytest.raises(
        ConfigurationError, match=r"data\.sources\.0 \(a\.jsonl\): none of its 3 .*for training after data\.probe"
    ):
        collect(source, held_out=5, probe=3)


@pytest.mark.parametrize(
    ("count", "held_out", "probe"), [(2, 1, 0), (3, 1, 1), (40, 4, 3), (1000, 100, 90), (4000, 300, 200)]
)
def test_parts_that_the_spec_does_not_size_follow_the_data(tmp_path, count, held_out, probe):
    data = run_spec(write_jsonl(tmp_path / "a.jsonl", rows(count)), data={"held_out": None, "probe": None}).data
    found = collect_prompts(data, 0, with_probe=probe > 0)
    assert (len(found.held_out), len(found.probe)) == (held_out, probe)
    assert len(list(found.train[0])) == count - held_out - probe
    assert found == collect_prompts(data, 0, with_probe=probe > 0)


def test_parts_follow_each_source_of_a_mixture_and_its_held_out_file(tmp_path):
    few = write_jsonl(tmp_path / "few.jsonl", rows(20))
    other = write_jsonl(tmp_path / "other.jsonl", rows(500, 100))
    with_file = {**other, "held_out_path": write_jsonl(tmp_path / "h.jsonl", rows(7, 900))["path"]}
    found = collect(few, with_file, {**SPELL, "size": 60}, held_out=None, probe=None)
    assert [sum(p.source == s for p in found.held_out) for s in range(3)] == [2, 7, 6]
    assert [sum(p.source == s for p in found.probe) for s in range(3)][:2] == [1, 50]
