"""Logs: JSON lines with their context, one file per process, and no secrets."""

from __future__ import annotations

import json
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.own_time import replace_time
from yatt_core import logs
from yatt_core.logs import JsonLinesFormatter, actor_logs, log_context, log_file, redact, timed


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=hunter2 and on", "password=*** and on"),
        ("PASSWD: hunter2, x", "PASSWD: ***, x"),
        ("{'api_key': 'k-1', 'n': 1}", "{'api_key': ***, 'n': 1}"),
        ('{"secret": "two words"}', '{"secret": ***}'),
        (r"{\"token\": \"abc\"}", r"{\"token\": ***}"),
        ('password="unfinished', "password=***"),
        ("MLFLOW_TRACKING_TOKEN=abc", "MLFLOW_TRACKING_TOKEN=***"),
        ("AWS_SECRET_ACCESS_KEY=ab/c+d", "AWS_SECRET_ACCESS_KEY=***"),
        ("password: hunter2 is wrong", "password: *** is wrong"),
        ("password: swordfish is wrong", "password: *** is wrong"),
        ("token: abcdefgh expired", "token: *** expired"),
        ("password: letmein", "password: ***"),
        ("token=letmein or not", "token=*** or not"),
        ("private-key=x api-key:y", "private-key=*** api-key:***"),
        ("https://host/x?token=abc&page=2", "https://host/x?token=***&page=2"),
        ("Authorization: Bearer abc.def-1", "Authorization: Bearer ***"),
        ("'Authorization': 'Basic dXNlcg=='", "'Authorization': 'Basic ***'"),
        ("postgresql://yatt:hunter2@db:5432/ledger", "postgresql://yatt:***@db:5432/ledger"),
        ("postgresql+psycopg://yatt:p@ss/w:rd@db/ledger", "postgresql+psycopg://yatt:***@db/ledger"),
        ("redis://:hunter2@host/0", "redis://:***@host/0"),
        ("a://u:p@h/x then b://v:q@g/y", "a://u:***@h/x then b://v:***@g/y"),
    ],
)
def test_secrets_are_replaced(text, shown):
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "tokens: 5, tokens_per_second=12.5",
        "stop_tokens=(1, 2) max_new_tokens=6",
        "http://127.0.0.1:4200/api answered, said x@y",
        "https://user@host/x",
        "secretary: Ann; the token of it",
        "wrong password: expected the one of the server",
        "no token: run yatt token create",
        "",
    ],
)
def test_text_without_secrets_stays(text):
    assert redact(text) == text


def test_redacting_twice_changes_nothing():
    once = redact("password=a token: 'b c' postgresql://u:p@h/x Bearer abc")
    assert redact(once) == once
    assert not {"a", "b c", "p", "abc"} & set(once.replace("@", " ").replace(":", " ").split())


def record(message: str, *args: object, **more: object) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "yatt_core.test", "levelname": "WARNING", "created": 12.34567, "msg": message, "args": args, **more}
    )


def test_a_record_is_one_json_line():
    line = JsonLinesFormatter("controller-0").format(record("shard %d\nhas %s", 3, "ü"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": 12.346,
        "level": "warning",
        "actor": "controller-0",
        "logger": "yatt_core.test",
        "message": "shard 3\nhas ü",
    }


def test_a_traceback_is_part_of_the_message_and_has_no_secrets():
    try:
        raise ValueError("cannot reach postgresql://u:hunter2@h/x")
    except ValueError:
        line = JsonLinesFormatter("a").format(record("failed", exc_info=sys.exc_info()))
    message = json.loads(line)["message"]
    assert message.startswith("failed\nTraceback")
    assert "ValueError: cannot reach postgresql://u:***@h/x" in message
    assert "hunter2" not in line


def test_the_log_context_becomes_fields():
    form = JsonLinesFormatter("a")
    with log_context(iteration=3, phase="collect"):
        with log_context(phase="reward", shard=1):
            inner = json.loads(form.format(record("x")))
        outer = json.loads(form.format(record("x")))
    after = json.loads(form.format(record("x")))
    assert (inner["iteration"], inner["phase"], inner["shard"]) == (3, "reward", 1)
    assert (outer["iteration"], outer["phase"]) == (3, "collect")
    assert "shard" not in outer
    assert "iteration" not in after


def test_the_log_context_ends_with_an_error_and_does_not_reach_other_threads():
    form = JsonLinesFormatter("a")
    with pytest.raises(ZeroDivisionError), log_context(iteration=1):
        with ThreadPoolExecutor(1) as pool:
            assert "iteration" not in json.loads(pool.submit(form.format, record("x")).result())
        raise ZeroDivisionError
    assert "iteration" not in json.loads(form.format(record("x")))


@pytest.fixture
def root_logger():
    """Yields the root logger and restores it afterwards."""
    root = logging.getLogger()
    ours = logging.getLogger("yatt_core")
    handlers = list(root.handlers)
    level = ours.level
    yield root
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
        handler.close()
    ours.setLevel(level)


def test_an_actor_has_a_file_of_its_own(tmp_path, root_logger):
    label = actor_logs(tmp_path, "controller-1", term=4)
    with log_context(iteration=2):
        logging.getLogger("yatt_core.controllers").info("token=%s", "abc")
        logging.getLogger("some.library").warning("careful")
        logging.getLogger("some.library").debug("noise")
    path = log_file(tmp_path, "controller-1", 4)
    assert path == tmp_path / "logs" / "t0004.controller-1.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["message"] for line in lines] == [f"controller-1 started, pid {os.getpid()}", "token=***", "careful"]
    assert [line["actor"] for line in lines] == ["controller-1"] * 3
    assert [line.get("iteration") for line in lines] == [None, 2, 2]
    assert (label.name, label.pid) == ("controller-1", os.getpid())


def test_a_second_term_does_not_touch_the_first_ones_file(tmp_path):
    assert log_file(tmp_path, "a", 1) != log_file(tmp_path, "a", 2)


def test_timing_adds_up_even_after_an_error(monkeypatch):
    clock = iter([10.0, 12.5, 20.0, 20.5])
    replace_time(monkeypatch, logs, monotonic=lambda: next(clock))
    timing: dict[str, float] = {}
    with timed(timing, "reward"):
        pass
    with pytest.raises(KeyError), timed(timing, "reward"):
        raise KeyError
    assert timing == {"reward": 3.0}


def parts_of(run_folder):
    """Returns the parts of the driver's log, oldest first."""
    parts = (log_file(run_folder, "driver", 3, number) for number in range(1, 100))
    return [path for path in parts if path.exists()]


def test_a_long_log_is_split_into_parts_of_which_the_newest_are_kept(tmp_path):
    (tmp_path / "logs").mkdir()
    handler = logs.PartsHandler(tmp_path, "driver", 3, part_bytes=200)
    for number in range(40):
        handler.emit(record("record %d", number))
    handler.close()
    files = parts_of(tmp_path)
    assert len(files) == logs.PARTS
    assert all(path.stat().st_size < 400 for path in files)
    kept = [json.loads(line)["message"] for path in files for line in path.read_text().splitlines()]
    assert kept == [f"record {number}" for number in range(40 - len(kept), 40)]

    again = logs.PartsHandler(tmp_path, "driver", 3, part_bytes=200)
    again.emit(record("the next process"))
    again.close()
    assert "the next process" in parts_of(tmp_path)[-1].read_text()


def test_a_full_disk_neither_raises_nor_covers_the_terminal(tmp_path, root_logger, capsys):
    file = log_file(tmp_path, "driver", 1)
    file.parent.mkdir()
    file.symlink_to("/dev/full")
    actor_logs(tmp_path, "driver", 1)
    for _ in range(3):
        logging.getLogger("yatt_core.test").warning("cannot be written")
    file.unlink()
    assert capsys.readouterr().err == ""


def test_a_process_that_drives_a_second_run_logs_only_there(tmp_path):
    root = logging.getLogger()
    before = list(logging.getLogger().handlers)
    try:
        actor_logs(tmp_path / "one", "driver", 1)
        actor_logs(tmp_path / "two", "driver", 1)
        logging.getLogger("yatt_core").warning("only here")
        assert len([handler for handler in root.handlers if handler not in before]) == 1
    finally:
        for handler in [handler for handler in root.handlers if handler not in before]:
            root.removeHandler(handler)
            handler.close()
    assert "only here" in log_file(tmp_path / "two", "driver", 1).read_text()
    assert "only here" not in log_file(tmp_path / "one", "driver", 1).read_text()
