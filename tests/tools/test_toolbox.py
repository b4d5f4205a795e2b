"""Tool calls: whatever a tool does becomes an answer, within its limits, and does not affect the next call."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest import mock

import psutil
import pytest

from tests.tools.functions import MARK, PATIENT
from tests.waiting import wait_until
from yatt_core.errors import AwayError, ConfigurationError, InfrastructureError
from yatt_core.prompts.tool_calls import UNAVAILABLE, ToolAnswer, ToolCall, read_call
from yatt_core.spec.sections.tools import ToolsSpec
from yatt_core.tools.toolbox import Toolbox

LIMITS = {"timeout_seconds": 20.0, "memory_mb": 64}
BAD = (
    "hang",
    "hang_in_c",
    "hang_deaf",
    "hog",
    "broken",
    "die",
    "leave",
    "silent",
    "forgetful",
    "talkative",
    "unspeakable",
    "signalled",
    "twice",
    "unwritable",
    "speechless",
    "hang_elsewhere",
    "detach",
)


@pytest.fixture(scope="module", autouse=True)
def marked() -> Iterator[None]:
    """Marks the processes that this test process's tools leave behind, since other test processes run in parallel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, f"left-by-a-tool-of-{os.getpid()}")
        yield


def spec_of(*names: str, seconds: float = 20.0, **changes: object) -> ToolsSpec:
    functions = [
        {"name": name, "function": f"tests.tools.functions:{name}", "timeout_seconds": seconds, "memory_mb": 64}
        for name in names
    ]
    return ToolsSpec.model_validate({"functions": functions, **changes})


@pytest.fixture(scope="module")
def toolbox() -> Iterator[Toolbox]:
    spec = spec_of(*BAD)
    hanging = [
        tool.model_copy(update={"timeout_seconds": 0.2}) for tool in spec.functions if tool.name.startswith("hang")
    ]
    others = [tool for tool in spec.functions if not tool.name.startswith("hang")]
    calculator = ToolsSpec.model_validate({"functions": [{"name": "calculator", "function": "calculator"}]}).functions
    toolbox = Toolbox(spec.model_copy(update={"functions": (*hanging, *others, *calculator)}))
    yield toolbox
    toolbox.close()


def pid_of(toolbox: Toolbox) -> int:
    """Returns the id of the running tool process."""
    assert toolbox._process is not None and toolbox._process.pid is not None
    return toolbox._process.pid


def ask(toolbox: Toolbox, name: str, **arguments: object) -> ToolAnswer:
    ((_, answer),) = toolbox.answer({7: ToolCall(name, arguments or {"expression": "1"})})
    return answer


@pytest.mark.parametrize(
    ("tool", "error"),
    [
        ("hang", "timeout: hang: took longer than 0.2 s"),
        ("hang_in_c", "timeout: hang_in_c: took longer than 0.2 s"),
        ("hang_deaf", "timeout: hang_deaf: took longer than 0.2 s"),
        ("hog", "memory: hog: needed more than 64 MiB"),
        ("broken", "raised: broken: raised ValueError: no such thing: <object object at 0x...> in 1"),
        ("die", "died: die: its process was ended by SIGSEGV"),
        ("leave", "died: leave: its process ended with exit code 7"),
        ("silent", "died: silent: its process was ended by SIGKILL"),
        ("unspeakable", "raised: unspeakable: raised TypeError: Object of type set is not JSON serializable"),
        ("signalled", "died: signalled: its process was ended by signal 35"),
        ("hang_elsewhere", "timeout: hang_elsewhere: took longer than 0.2 s"),
        ("unwritable", "raised: unwritable: raised ValueError: bad \\udc80 name in 1"),
        ("speechless", "raised: speechless: raised SpeechlessError: (its text is unavailable: RuntimeError)"),
    ],
)
def test_whatever_a_tool_does_becomes_an_answer(toolbox: Toolbox, tool: str, error: str) -> None:
    answer = ask(toolbox, tool)
    assert answer.error == error
    assert answer.text == f"error: {error.partition(': ')[2]}", "the policy sees the error"
    assert ask(toolbox, "calculator", expression="2 * 3") == ToolAnswer("6"), "the next call is answered"


def test_processes_started_by_a_tool_end_with_it(toolbox: Toolbox) -> None:
    ask(toolbox, "hang_deaf")
    assert not left_by_tools()


def test_processes_detached_by_a_tool_end_with_it(toolbox: Toolbox) -> None:
    assert ask(toolbox, "detach") == ToolAnswer("1")
    assert not left_by_tools(), "although it has its own session and its parent is gone"


def left_by_tools() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if os.environ[MARK] in (p.info["cmdline"] or ())]


def test_results_are_texts_or_json(toolbox: Toolbox) -> None:
    assert ask(toolbox, "talkative") == ToolAnswer('{"said": ["1", 1.5, null, "ü"]}'), (
        "printed output is not the answer"
    )
    assert ask(toolbox, "talkative", expression="\ud800").text == '{"said": ["?", 1.5, null, "ü"]}', "always valid text"


def test_a_tool_that_returns_in_two_processes_answers_once(toolbox: Toolbox) -> None:
    for number in range(3):
        assert ask(toolbox, "twice", expression=str(number)) == ToolAnswer(str(number))


def test_a_call_that_cannot_be_encoded_gets_an_answer_that_can(toolbox: Toolbox) -> None:
    call = read_call('<tool_call>{"name": "calculator", "arguments": {"\\ud800": 1}}</tool_call>')
    assert isinstance(call, ToolCall)
    answer = ask(toolbox, call.name, **call.arguments)
    assert answer.error.startswith("raised: calculator: raised TypeError")
    assert "\\ud800" in answer.error
    assert answer.text.encode()


def test_what_a_tool_prints_is_shown(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    toolbox = Toolbox(spec_of("printing"))
    try:
        assert ask(toolbox, "printing", expression="a line without an end") == ToolAnswer("printed")
    finally:
        toolbox.close()
    assert "a line without an end" in capfd.readouterr().err


def test_a_call_sees_nothing_of_the_previous_one(toolbox: Toolbox) -> None:
    assert [ask(toolbox, "forgetful").text for _ in range(3)] == ["1", "1", "1"]


def test_wrong_arguments_and_unknown_tools_are_answers(toolbox: Toolbox) -> None:
    assert ask(toolbox, "calculator", sum="1").error.startswith("raised: calculator: raised TypeError")
    answer = ask(toolbox, "calculater")
    assert answer.error.startswith("unknown: there is no tool 'calculater'; there are: broken, calculator")


def test_the_policy_cannot_set_the_options_of_the_spec(tmp_path: Path) -> None:
    file = tmp_path / "calls"
    functions = [{"name": "count", "function": "tests.tools.functions:counting", "options": {"file": str(file)}}]
    toolbox = Toolbox(ToolsSpec.model_validate({"functions": functions}))
    try:
        assert ask(toolbox, "count", expression="abc") == ToolAnswer("3")
        refused = ask(toolbox, "count", expression="abc", file="/etc/passwd")
        assert refused.error == "raised: count: raised TypeError: unexpected argument 'file'"
        assert ask(toolbox, "count", expression="abc", more="!") == ToolAnswer("3!")
    finally:
        toolbox.close()
    assert file.read_text() == "abc\nabc\n"


def test_many_calls_at_once_each_get_their_own_answer(toolbox: Toolbox) -> None:
    calls = {n: ToolCall("calculator", {"expression": f"{n} + {n}"}) for n in range(20)}
    calls |= {50 + n: ToolCall("hang", {"expression": ""}) for n in range(4)}
    answers = dict(toolbox.answer({**calls, 99: ToolAnswer("what is wrong", "malformed: what is wrong")}))
    assert answers[99].error == "malformed: what is wrong"
    assert [answers[n].text for n in range(20)] == [str(2 * n) for n in range(20)]
    assert all(answers[50 + n].error.startswith("timeout") for n in range(4))
    assert answers.keys() == {*calls, 99}


def answers_to(toolbox: Toolbox, count: int) -> list[tuple[int, ToolAnswer]]:
    """Returns the next answers to calls in progress."""
    found: list[tuple[int, ToolAnswer]] = []
    while len(found) < count:
        found += toolbox.arrived(20.0)
    return found


def patient(file: Path, **changes: object) -> Toolbox:
    """Returns a toolbox whose tool answers some calls only once a file is there."""
    functions = [{"name": "patient", "function": "tests.tools.functions:patient", "options": {"file": str(file)}}]
    return Toolbox(ToolsSpec.model_validate({"functions": functions, **changes}))


def test_later_calls_are_answered_beside_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with closing(patient(file)) as toolbox:
        toolbox.begin({5: ToolCall("patient", {"expression": PATIENT})})
        assert toolbox.arrived() == []
        toolbox.begin({1: ToolCall("patient", {"expression": "1"}), 2: ToolAnswer("", "malformed: no")})
        assert sorted(answers_to(toolbox, 2)) == [(1, ToolAnswer("1")), (2, ToolAnswer("", "malformed: no"))]
        toolbox.begin({3: ToolCall("patient", {"expression": "3"})})
        assert answers_to(toolbox, 1) == [(3, ToolAnswer("3"))]
        file.touch()
        assert answers_to(toolbox, 1) == [(5, ToolAnswer(PATIENT))]


def test_long_calls_are_sent_while_nobody_reads_the_answers(tmp_path: Path) -> None:
    """Neither side waits for the other to read, although both pipes are full."""
    count = 24
    text = "1" * 60_000
    with closing(patient(tmp_path)) as toolbox:
        for number in range(count):
            toolbox.begin({number: ToolCall("patient", {"expression": text})})
        assert {number for number, _ in answers_to(toolbox, count)} == set(range(count))


def test_a_caller_that_was_busy_does_not_take_a_process_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    monkeypatch.setattr("yatt_core.tools.process.SLACK_SECONDS", 0.25 - LIMITS["timeout_seconds"])
    monkeypatch.setattr("yatt_core.tools.process.GAP_SECONDS", 0.01)
    long = "1" * 200_000
    functions = [
        {"name": "patient", "function": "tests.tools.functions:patient", "options": {"file": str(file)}, **LIMITS}
    ]
    spec = ToolsSpec.model_validate({"functions": functions, "max_result_tokens": len(long)})
    with closing(Toolbox(spec)) as toolbox:
        toolbox.begin({0: ToolCall("patient", {"expression": PATIENT}), 1: ToolCall("patient", {"expression": long})})
        answers: list[tuple[int, ToolAnswer]] = []
        while not answers:
            time.sleep(0.3)
            answers += toolbox.arrived()
        assert answers == [(1, ToolAnswer(long))], "although its answer needs several looks"
        with pytest.raises(InfrastructureError, match=r"did not respond for 0\.25 s"):
            while True:
                toolbox.arrived(0.05)


def test_abandoned_calls_are_not_mistaken_for_later_ones(toolbox: Toolbox) -> None:
    answers = toolbox.answer({n: ToolCall("calculator", {"expression": str(n)}) for n in range(8)})
    next(answers)
    answers.close()
    assert ask(toolbox, "calculator", expression="40 + 2") == ToolAnswer("42")


def test_running_calls_end_with_the_toolbox(tmp_path: Path) -> None:
    toolbox = Toolbox(spec_of("hang_deaf", "broken", parallel_calls=2))
    calls = {n: ToolCall(name, {"expression": ""}) for n, name in enumerate(("hang_deaf", "broken"))}
    assert next(toolbox.answer(calls))[0] == 1
    toolbox.close()
    assert not left_by_tools()


def test_running_calls_end_when_the_tool_process_is_killed() -> None:
    toolbox = Toolbox(spec_of("hang_deaf", "detach", parallel_calls=2))
    answers = toolbox.answer({n: ToolCall(name, {"expression": ""}) for n, name in enumerate(("hang_deaf", "detach"))})
    assert next(answers)[0] == 1
    wait_until(lambda: bool(left_by_tools()), seconds=30.0)
    os.kill(pid_of(toolbox), signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="tool process has ended"):
        next(answers)
    wait_until(lambda: not left_by_tools(), seconds=30.0)


def test_a_lost_process_is_an_infrastructure_error_and_is_replaced(toolbox: Toolbox) -> None:
    ask(toolbox, "calculator", expression="1")
    os.kill(pid_of(toolbox), signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="tool process has ended"):
        ask(toolbox, "calculator", expression="1")
    assert ask(toolbox, "calculator", expression="1") == ToolAnswer("1")


def test_a_function_that_cannot_be_loaded_is_reported() -> None:
    functions = [{"name": "count", "function": "tests.tools.functions:countin"}]
    with pytest.raises(ConfigurationError, match=r"rollout\.tools\.functions 'count'.*did you mean 'counting'"):
        ask(Toolbox(ToolsSpec.model_validate({"functions": functions})), "count")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yatt_core.redoing.FIRST_SECONDS", 0.001)
    monkeypatch.setattr("yatt_core.availability.AWAY_SECONDS", 0.2)


@pytest.mark.usefixtures("quick")
def test_a_call_that_a_service_does_not_answer_beside_others_has_no_answer_for_the_policy() -> None:
    with closing(Toolbox(spec_of("asking"))) as toolbox:
        calls = {n: ToolCall("asking", {"expression": text}) for n, text in enumerate(("1", "7", "2"))}
        found = dict(toolbox.answer(calls))
        assert (found[0], found[2]) == (ToolAnswer("found 1"), ToolAnswer("found 2"))
        assert found[1].is_unavailable and found[1].text == ""
        assert "the search is busy" in found[1].error
        alone = dict(toolbox.answer({4: ToolCall("asking", {"expression": "77"})}))
        assert alone[4].is_unavailable, "a call that was answered before shows that the service is there"


@pytest.mark.usefixtures("quick")
def test_calls_that_a_service_does_not_answer_share_a_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yatt_core.tools.toolbox.RETRIES", 0)
    sent: dict[int, str] = {}
    asked: list[str] = []

    def send(calls: dict[int, ToolCall]) -> None:
        sent.update({number: str(call.arguments["expression"]) for number, call in calls.items()})

    def receive(seconds: float) -> list[dict[str, object]]:
        """Answers everything in one read, but no 7."""
        lines: list[dict[str, object]] = []
        for number, text in sent.items():
            refused = {"kind": UNAVAILABLE, "reason": "busy"}
            lines.append({"number": number, **(refused if "7" in text else {"value": text})})
            asked.append(text)
        sent.clear()
        return lines

    with closing(Toolbox(spec_of("asking"))) as toolbox:
        assert toolbox._process is not None
        monkeypatch.setattr(toolbox._process, "send", send)
        monkeypatch.setattr(toolbox._process, "receive", receive)
        assert ask(toolbox, "asking", expression="1") == ToolAnswer("1")
        found = dict(toolbox.answer({n: ToolCall("asking", {"expression": "7"}) for n in range(4)}))
        assert len(found) == 4 and all(answer.is_unavailable for answer in found.values())
    assert asked == ["1", *"7777", "1", *"7777"], "a last attempt of each, once others are answered"


@pytest.mark.usefixtures("quick")
def test_a_service_that_is_away_costs_only_its_own_calls(tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.touch()
    file = tmp_path / "file"
    functions = [
        {"name": "asking", "function": "tests.tools.functions:asking", "options": {"file": str(away)}},
        {"name": "patient", "function": "tests.tools.functions:patient", "options": {"file": str(file)}},
    ]
    calls = {n: ToolCall(name, {"expression": PATIENT}) for n, name in enumerate(("asking", "patient"))}
    with closing(Toolbox(ToolsSpec.model_validate({"functions": functions}))) as toolbox:
        toolbox.begin(calls)
        while "asking" not in toolbox._given_up:
            assert toolbox.arrived(0.05) == []
        toolbox.begin({2: ToolCall("patient", {"expression": "2"}), 3: ToolCall("asking", {"expression": "3"})})
        assert answers_to(toolbox, 1) == [(2, ToolAnswer("2"))]
        file.touch()
        assert answers_to(toolbox, 1) == [(1, ToolAnswer(PATIENT))], "its call goes on until it ends"
        with pytest.raises(AwayError, match="what tool 'asking' asks is away"):
            toolbox.arrived(20.0)
        away.unlink()
        assert ask(toolbox, "asking", expression="2") == ToolAnswer("found 2"), "the error is raised once"


@pytest.mark.usefixtures("quick")
def test_answers_that_arrive_with_an_absence_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Toolbox(spec_of("asking", "patient"))) as toolbox:
        assert toolbox._process is not None
        monkeypatch.setattr(toolbox._process, "send", lambda calls: None)
        toolbox.begin({n: ToolCall(name, {}) for n, name in enumerate(("asking", "asking", "patient"))})
        busy = {"kind": UNAVAILABLE, "reason": "busy"}
        lines = [{"number": 0, **busy}, {"number": 1, **busy}, {"number": 2, "value": "paid for"}]
        monkeypatch.setattr(toolbox._process, "receive", lambda seconds: lines)
        monkeypatch.setattr("yatt_core.tools.toolbox.RETRIES", 0)
        monkeypatch.setattr("yatt_core.availability.AWAY_SECONDS", 0.0)
        assert toolbox.arrived() == [(2, ToolAnswer("paid for"))]
        with pytest.raises(AwayError):
            toolbox.arrived()


@pytest.mark.usefixtures("quick")
def test_an_absence_waits_for_calls_of_other_tools_and_hides_no_other_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yatt_core.tools.toolbox.RETRIES", 0)
    monkeypatch.setattr("yatt_core.availability.AWAY_SECONDS", 0.0)
    busy = [{"number": number, "kind": UNAVAILABLE, "reason": "busy"} for number in range(2)]

    def begun(third: str, looks: mock.Mock) -> Toolbox:
        """Returns a toolbox with four calls in progress. looks: what is found of their answers."""
        toolbox = Toolbox(spec_of("asking", "patient"))
        monkeypatch.setattr(toolbox._process, "send", lambda calls: None)
        monkeypatch.setattr(toolbox._process, "receive", looks)
        toolbox.begin({n: ToolCall(name, {}) for n, name in enumerate(("asking", "asking", third, "asking"))})
        return toolbox

    with closing(begun("asking", mock.Mock(side_effect=[busy]))) as toolbox, pytest.raises(AwayError):
        toolbox.arrived()  # other calls of the same tool are not waited for
    looks = mock.Mock(side_effect=[busy, [{"number": 2, "value": "paid for"}], []])
    with closing(begun("patient", looks)) as toolbox:
        assert [toolbox.arrived(20.0) for _ in range(2)] == [[], [(2, ToolAnswer("paid for"))]]
        with pytest.raises(AwayError):
            toolbox.arrived(20.0)
    assert [call.args[0] > 0.0 for call in looks.call_args_list] == [True, True, False]
    lost = mock.Mock(side_effect=[busy, InfrastructureError("the tool process has ended")])
    with closing(begun("patient", lost)) as toolbox:
        assert toolbox.arrived() == []
        with pytest.raises(InfrastructureError, match="the tool process has ended"):
            toolbox.arrived()


def test_what_a_lost_process_has_answered_is_returned_before_the_loss_is_raised(tmp_path: Path) -> None:
    with closing(patient(tmp_path / "file")) as toolbox:
        toolbox.begin({0: ToolCall("patient", {"expression": "1"})})
        assert toolbox._process is not None and toolbox._process._process is not None
        process = toolbox._process._process
        assert process.stdout is not None
        select.select([process.stdout], [], [], 20.0)
        process.kill()
        process.wait()
        toolbox.begin({1: ToolCall("patient", {"expression": "2"}), 2: ToolAnswer("", "malformed: no")})
        assert sorted(answers_to(toolbox, 2)) == [(0, ToolAnswer("1")), (2, ToolAnswer("", "malformed: no"))]
        with pytest.raises(InfrastructureError, match="tool process has ended with exit code -9"):
            toolbox.arrived(20.0)


@pytest.mark.usefixtures("quick")
def test_a_service_that_answers_no_call_is_away(tmp_path: Path) -> None:
    file = tmp_path / "away"
    spec = spec_of("asking")
    (tool,) = spec.functions
    for deterministic in (True, False):
        options = {"options": {"file": str(file)}, "deterministic": deterministic}
        with closing(Toolbox(spec.model_copy(update={"functions": (tool.model_copy(update=options),)}))) as toolbox:
            assert ask(toolbox, "asking", expression="1") == ToolAnswer("found 1")
            file.touch()
            with pytest.raises(AwayError, match=r"what tool 'asking' asks is away: .*the search is busy"):
                ask(toolbox, "asking", expression="2")
            asks = "what tool 'asking' asks"
            assert (toolbox.answers(asks), toolbox.answers("a judge")) == (False, None)
            file.unlink()
            assert toolbox._process is not None
            with mock.patch.object(toolbox._process, "send", wraps=toolbox._process.send) as made:
                assert [toolbox.answers(asks) for _ in range(2)] == [True, True]
                assert ask(toolbox, "asking", expression="2") == ToolAnswer("found 2")
            asked = [call.arguments["expression"] for each in made.call_args_list for call in each.args[0].values()]
            # What may not be repeated is asked once: the answer to the first question is kept for the second one.
            assert asked == (["1", "1", "2"] if deterministic else ["2"])
            assert ask(toolbox, "asking", expression="2") == ToolAnswer("found 2"), "a kept answer serves once"
            assert toolbox.answers(asks) is None, "what has answered since is not looked for"
