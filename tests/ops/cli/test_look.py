"""The output of `runs`, `show`, `logs` and `rollouts` for a ledger and run folder as a driver leaves them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from flows.run.home import Home
from ops.cli.commands.inspection.logs import LogTail
from ops.presentation import output
from ops.presentation.time_accounts import advice_line, bar
from tests.ops.conftest import Yatt
from tests.ops.judged_run import CUT, DOWN, FAILED, SAID, UNREADABLE, seed_judged_run
from tests.ops.seeding import seed_run, write_copied_logs
from yatt_core.fault_stacks import KEPT

RESULT_KEYS = (
    "run",
    "state",
    "iteration",
    "accuracy_sft",
    "accuracy",
    "seconds",
    "sft_seconds",
    "weights_digest",
    "experience_digest",
    "metrics_digest",
    "flow_bytes_per_sample",
)


@pytest.fixture
def run(home: Home) -> str:
    return seed_run(home)


def test_runs_lists_the_newest_first(yatt: Yatt, home: Home, run: str) -> None:
    second = seed_run(home, committed=1, ends=False)
    listed = yatt("runs", "-o", "json").document["runs"]
    assert [(row["id"], row["state"], row["iteration"]) for row in listed] == [
        (second, "running", 1),
        (run, "stopped", 2),
    ]
    assert listed[0]["holder"].startswith("driver of toy-2")
    assert [row["id"] for row in yatt("runs", "--limit", "1", "-o", "json").document["runs"]] == [second]
    text = yatt("runs").out
    assert "toy-1" in text
    assert "2/4" in text
    assert "driver of toy-2" in text


def test_a_reason_is_cut_after_a_word_and_wrapped_to_the_terminal(
    yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "window until 2026-11-22 06:00:00 +01:00 is over\n" + "and nobody has looked since " * 9 + "then"
    run = seed_run(home, ends=False)
    with Ledger.open(home.ledger) as ledger:
        ledger.runs.set_state(Fence.of_run(run, 1), "paused", reason)
    assert yatt("runs", "-o", "json").document["runs"][0]["state_reason"] == reason
    for width in (200, 100, 80):
        monkeypatch.setattr(output, "WIDTH_OF_FILES", width)
        _, head, _, *rows = yatt("runs").out.splitlines()
        assert max(map(len, rows)) <= width
        told = " ".join(row[head.index("reason") :].strip() for row in rows).strip()
        assert told.endswith("…") and " ".join(reason.split()).startswith(told.removesuffix("…") + " ")
        assert len(told) > 90


def test_show_begins_with_the_results(yatt: Yatt, run: str) -> None:
    document = yatt("show", run, "-o", "json").document
    assert tuple(document)[: len(RESULT_KEYS)] == RESULT_KEYS
    assert (document["accuracy_sft"], document["accuracy"], document["flow_bytes_per_sample"]) == (0.25, 0.5, 100.0)
    assert document["phases"][0]["phase"] == "collect"
    assert document["samples"] == 16
    assert document["metrics"]["reward/mean"] == 0.2
    text = yatt("show", run).out
    assert "toy-1 is stopped (stop requested), iteration 2 of 4" in text
    assert document["metrics_digest"] in text


def test_show_names_the_stacks_of_actors_that_hung(yatt: Yatt, home: Home, run: str) -> None:
    assert yatt("show", run, "-o", "json").document["stacks"] == []
    folder = home.run_folder(run) / KEPT
    folder.mkdir(parents=True)
    for name in ("i3.learn.trainer-0.1000.txt", "i2.collect.rollout-0.999.txt"):
        (folder / name).write_text("stacks")
    assert f"2 in the folder, the newest {KEPT}/i3.learn.trainer-0.1000.txt" in yatt("show", run).out


@pytest.mark.parametrize("name", ["toy-1", "toy-", "t", "latest"])
def test_a_run_is_found_by_its_id_a_unique_prefix_or_latest(yatt: Yatt, run: str, name: str) -> None:
    assert yatt("show", name, "-o", "json").document["run"] == run


def test_latest_is_the_newest_and_an_ambiguous_prefix_names_the_candidates(yatt: Yatt, home: Home, run: str) -> None:
    second = seed_run(home, committed=0)
    assert yatt("show", "latest", "-o", "json").document["run"] == second
    answer = yatt("show", "toy")
    assert answer.code == 2
    assert "toy-2, toy-1" in answer.err


def messages(answer: str) -> list[str]:
    return [json.loads(line)["message"] for line in answer.splitlines()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["driver started, pid 7", "shard 0", "shard 1", "slow"]),
        (["--iteration", "1"], ["shard 0", "slow"]),
        (["--phase", "collect"], ["shard 0", "shard 1"]),
        (["--actor", "controller"], ["shard 0", "shard 1"]),
        (["--actor", "driver", "--iteration", "1"], ["slow"]),
        (["--level", "warning"], ["shard 1", "slow"]),
        (["--lines", "1"], ["slow"]),
        (["--lines", "0"], ["driver started, pid 7", "shard 0", "shard 1", "slow"]),
    ],
)
def test_logs_are_merged_by_time_and_filtered(yatt: Yatt, run: str, options: list[str], expected: list[str]) -> None:
    assert messages(yatt("logs", run, *options, "-o", "json").out) == expected


def test_logs_as_text_name_actor_and_place(yatt: Yatt, run: str) -> None:
    line = yatt("logs", run, "--level", "error").out
    assert [word in line for word in ("controller-0", "2 collect", "shard 1")] == [True] * 3
    nothing = yatt("logs", run, "--iteration", "99")
    assert (nothing.code, nothing.out) == (0, "") and nothing.err.endswith(f"{run}/logs\n")


def test_logs_of_other_disks_name_their_node(yatt: Yatt, home: Home, run: str) -> None:
    write_copied_logs(home.run_folder(run), "worker-7", lost_since=60.0)
    text = yatt("logs", run, "--actor", "trainer")
    assert "trainer-1@worker-7" in text.out and "node worker-7 is gone" in text.err
    answer = yatt("logs", run, "-o", "json")
    nodes = {record["actor"]: record.get("node") for record in map(json.loads, answer.out.splitlines())}
    assert nodes == {"driver": None, "controller-0": None, "trainer-1": "worker-7"}


def test_a_followed_log_yields_each_record_once_and_waits_for_complete_lines(home: Home, run: str) -> None:
    folder = home.run_folder(run) / "logs"
    tail = LogTail(folder)
    assert len(list(tail.new_records())) == 4
    assert list(tail.new_records()) == []
    line = json.dumps({"time": 9.0, "level": "info", "actor": "late", "message": "new"})
    late = folder / "t0002.late.jsonl"
    late.write_text(line[:10])
    assert list(tail.new_records()) == []
    with late.open("a") as stream:
        stream.write(line[10:] + "\ntorn by a kill{\n" + line + "\n")
    assert [record["message"] for record in tail.new_records()] == ["new", "new"]
    assert list(tail.new_records()) == []


def test_rollouts_are_read_from_the_sealed_files(yatt: Yatt, run: str) -> None:
    document = yatt("rollouts", run, "--iteration", "2", "-o", "json").document
    assert [(row["prompt_ordinal"], row["sample"]) for row in document["samples"]] == [
        (ordinal, sample) for ordinal in range(4, 8) for sample in range(2)
    ]
    first = document["samples"][0]
    assert (first["prompt"], first["response"]) == ("Spell word 0 backward, please", "answer 0.0")
    assert (first["rewards"], first["correct"], first["tokens"]) == ({"virtual": 0.0}, False, 2)


def test_rollouts_are_sorted_limited_and_selected(yatt: Yatt, run: str) -> None:
    assert yatt("rollouts", run, "-o", "json").document["iteration"] == 2, "the newest committed one is the default"
    best = yatt("rollouts", run, "--iteration", "1", "--sort", "reward", "--limit", "2", "-o", "json").document
    assert [row["response"] for row in best["samples"]] == ["answer 3.1", "answer 2.1"]
    assert best["total"] == 8
    one = yatt("rollouts", run, "--iteration", "1", "--prompt", "2", "-o", "json").document
    assert {row["prompt_ordinal"] for row in one["samples"]} == {2}
    limited = yatt("rollouts", run, "--iteration", "1", "--limit", "3")
    assert "3 of 8 samples" in limited.err and "--limit 0" in limited.err
    assert "answer 1.0" in limited.out
    full = yatt("rollouts", run, "--iteration", "1", "--full", "--limit", "1").out
    assert "Spell word 0 backward, please\n>>> answer 0.0" in full


def test_rollouts_are_grouped_by_prompt(yatt: Yatt, run: str) -> None:
    grouped = ("rollouts", run, "--iteration", "1", "--group", "--sort", "virtual", "--limit", "2")
    found = yatt(*grouped, "-o", "json").document
    assert [(group["prompt_ordinal"], len(group["samples"])) for group in found["groups"]] == [(3, 2), (2, 2)]
    text = yatt(*grouped)
    assert "2 of 4 prompts" in text.err and "Spell word 3 backward" in text.out
    full = yatt("rollouts", run, "--iteration", "1", "--group", "--full", "--where", "prompt = 1").out
    assert full.count("Spell word 1 backward") == 1 and ">>> answer 1.0" in full and ">>> answer 1.1" in full


def test_rollouts_without_a_score_are_marked_and_the_judges_words_are_there(yatt: Yatt, home: Home) -> None:
    command = ("rollouts", seed_judged_run(home), "--iteration", "1")
    lacking = {CUT, FAILED, UNREADABLE}
    samples = yatt(*command, "-o", "json").document["samples"]
    found = {(row["prompt_ordinal"], row["sample"]): row for row in samples}
    assert {place for place, row in found.items() if row["validity"] == "no score"} == lacking
    assert {row["validity"] for place, row in found.items() if place not in lacking} == {"used"}
    assert {place for place, row in found.items() if row["reward"] is None and row["correct"] is None} == lacking
    said = {
        place: [(one["words"], one["score"], one["why"]) for one in row["judgements"]] for place, row in found.items()
    }
    assert said[0, 0] == [(SAID, 8.0, "")]
    assert [said[place] for place in (CUT, FAILED, UNREADABLE)] == [
        [("on the one hand", None, "cut")], [("", None, DOWN)], [("who knows", None, "unparsed")],
    ]  # fmt: skip
    assert yatt(*command).out.count("no score") == 3
    blocks = yatt(*command, "--full").out.split("--- prompt ")[1:]
    facts = {(int(block[0]), int(block.partition("sample ")[2][0])): block.splitlines()[1:3] for block in blocks}
    assert facts[0, 0][0].startswith("reward 0 (") and facts[0, 0][1] == f"judge judge: 8: {SAID}"
    assert all(facts[place][0].startswith("no score (") for place in lacking)
    assert facts[CUT][1] == "judge judge: no score (cut): on the one hand"
    assert facts[FAILED][1] == f"judge judge: no score ({DOWN})"
    assert facts[UNREADABLE][1] == "judge judge: no score (unparsed): who knows"


def test_a_group_of_rollouts_is_described_by_those_with_a_score(yatt: Yatt, home: Home) -> None:
    command = ("rollouts", seed_judged_run(home), "--iteration", "1", "--group")
    groups = yatt(*command, "-o", "json").document["groups"]
    for group in groups:
        scored = [row["reward"] for row in group["samples"] if row["validity"] == "used"]
        found = (group["reward"], group["spread"], group["lowest"], group["highest"])
        expected = (sum(scored) / len(scored), (max(scored) - min(scored)) / 2, min(scored), max(scored))
        assert found == pytest.approx(expected)
        assert ("no score" in group["validity"]) == (len(scored) == 1)
    assert [len(group["validity"]) for group in groups] == [2, 2, 1, 2]


def test_rollouts_of_two_iterations_are_compared(yatt: Yatt, run: str) -> None:
    found = yatt("rollouts", run, "--compare", "1:2", "-o", "json").document
    assert (found["before"]["iteration"], found["after"]["iteration"], found["shared"]) == (1, 2, 4)
    assert [(pair["same"], pair["before"]["prompt_ordinal"]) for pair in found["pairs"]] == [
        (True, ordinal) for ordinal in range(4)
    ]
    assert "Spell word 0 backward" in yatt("rollouts", run, "--compare", "1:2").out
    full = yatt("rollouts", run, "--compare", "1:2", "--full", "--limit", "1").out
    assert full.count(">>> answer 0.0") == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--compare", "1-2"), "--compare '1-2'"),
        (("--compare", "1:2", "--iteration", "1"), "--iteration"),
        (("--sort", "rewrad"), "rewrad"),
        (("--group", "--where", "rewrad > 1"), "rewrad > 1"),
    ],
)
def test_rollouts_refuse_what_does_not_apply(yatt: Yatt, run: str, words: tuple[str, ...], says: str) -> None:
    answer = yatt("rollouts", run, *words)
    assert (answer.code, answer.out) == (2, "") and says in answer.err


def test_rollouts_of_a_missing_iteration(yatt: Yatt, run: str) -> None:
    answer = yatt("rollouts", run, "--iteration", "3")
    assert (answer.code, answer.out) == (2, "")
    assert "no experience of iteration 3 is recorded; the newest commit is 2" in answer.err


def test_rollouts_refuse_a_changed_file(yatt: Yatt, home: Home, run: str) -> None:
    with Ledger.open(home.ledger) as ledger:
        folder = home.run_folder(run) / ledger.records.shards(run, 0, 1)[0].folder
    path = folder / "samples.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    answer = yatt("rollouts", run, "--iteration", "1")
    assert (answer.code, answer.out) == (1, "")
    assert str(path) in answer.err


def test_reading_writes_nothing(yatt: Yatt, home: Home, run: str) -> None:
    def state() -> dict[str, bytes]:
        files = (path for path in Path(home.folder).rglob("*") if path.is_file())
        return {os.fspath(path): path.read_bytes() for path in files if not path.name.endswith(("-wal", "-shm"))}

    before = state()
    for words in (["runs"], ["show", run], ["logs", run], ["rollouts", run, "--iteration", "1"]):
        assert yatt(*words).code == 0
    assert state() == before


def test_show_has_the_use_of_time_and_the_cost_of_crashes(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, committed=1, ends=False)
    with Ledger.open(home.ledger) as ledger:
        first = Fence.of_run(run, 1)
        ledger.phases.dispatch(first, ledger.phases.plan(first, 0, 2, "learn"))
        second = ledger.leases.acquire(run, this_process("second"), 600, lambda _: True)
        ledger.leases.start_session(second, "", "second")
    document = yatt("show", run, "-o", "json").document
    assert sum(document["time"]["buckets"].values()) == pytest.approx(document["time"]["wall_seconds"])
    (crash,) = document["time"]["crashes"]
    assert (crash["kind"], crash["phase"], crash["iteration"]) == ("driver lost", "learn", 2)
    assert document["checkpoint_advice"]["every"] is None
    text = yatt("show", run).out
    for words in ("cost of 1 crash ", "restart", "productive", "ETTR", "checkpoints.every: no advice"):
        assert words in text


def test_the_advice_names_its_figures_and_says_when_they_are_few() -> None:
    advice = {
        "every": 3,
        "firm": True,
        "now": 20,
        "checkpoints": 40,
        "failures": 12,
        "stall_seconds": 15.0,
        "replay_seconds": 65.0,
        "iteration_seconds": 300.0,
        "seconds_between_failures": 7500.0,
        "overhead": 0.0253,
        "overhead_now": 0.0848,
    }
    line = advice_line(advice)
    assert line.startswith("checkpoints.every: 3 ")
    assert all(fact in line for fact in ("2.53%", "8.48% with the current 20", "15 s", "1 min 5 s", "5 min 0 s", "40 "))
    assert "12 failures" in line and "2 h 5 min" in line and "assumed" not in line
    unsure = advice_line(advice | {"firm": False, "failures": 0})
    assert "possibly 3" in unsure and "2 h 5 min is assumed" in unsure


def test_the_bar_is_filled_by_the_shares() -> None:
    line = bar({"productive": 1.0, "redone": 0.5, "idle": 0.5}, 2.0)
    assert line == "█" * 30 + "▓" * 15 + " " * 15
