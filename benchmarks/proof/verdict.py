"""Computes the result of a proof: compares the two runs and checks whether they are equal bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from benchmarks.proof.kills import Killed
from benchmarks.proof.runs import Proved

DIGESTS = ("weights_digest", "experience_digest", "metrics_digest")
SAME = (*DIGESTS, "iteration", "accuracy_sft", "accuracy")
DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the comparison.

    unequal: the results that differ between the runs or are missing in one of them.
    unsound: the runs whose audit found a disagreement.
    missed: phases that no kill hit.
    """

    unequal: tuple[str, ...]
    unsound: tuple[str, ...]
    missed: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the proof succeeded."""
        return not (self.unequal or self.unsound or self.missed)

    def __str__(self) -> str:
        if self.holds:
            return "equal: weights, experience and metrics are bit for bit the same, and both audits are sound"
        reasons = []
        if self.unequal:
            reasons.append(f"unequal: {', '.join(self.unequal)}")
        if self.unsound:
            reasons.append(f"audit not sound: {', '.join(self.unsound)}")
        if self.missed:
            reasons.append(f"no kill fell into: {', '.join(self.missed)}")
        return "not proved; " + "; ".join(reasons)


def judge(undisturbed: Proved, killed: Proved, phases: Sequence[str]) -> Verdict:
    """Compares two runs. phases: those that must have been hit by a kill."""
    one = undisturbed.results
    other = killed.results
    unequal = tuple(key for key in SAME if one.get(key) is None or one[key] != other.get(key))
    unsound = tuple(run.results["run"] for run in (undisturbed, killed) if not run.audit.get("sound"))
    hit = {kill.phase for kill in killed.kills if kill.hit}
    return Verdict(unequal, unsound, tuple(phase for phase in dict.fromkeys(phases) if phase not in hit))


def comparison(undisturbed: Proved, killed: Proved, verdict: Verdict) -> Table:
    """Builds the table printed at the end of the proof."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in (
        "",
        "undisturbed",
        f"killed {len(killed.kills)} times" if len(killed.kills) != 2 else "killed twice",
        "",
    ):
        table.add_column(title, overflow="fold")

    def row(title: str, cell: Callable[[Proved], str], *keys: str) -> None:
        different = any(key in verdict.unequal for key in keys)
        mark = Text("≠" if different else "=", "bold red" if different else "bold green") if keys else ""
        table.add_row(title, cell(undisturbed), cell(killed), mark)

    row("run", lambda run: str(run.results["run"]))
    for key in DIGESTS:
        row(key, partial(_digest, key), key)
    row("iterations", lambda run: str(run.results.get("iteration")), "iteration")
    row("held-out accuracy", _accuracy, "accuracy_sft", "accuracy")
    row("kills", lambda run: "\n".join(map(_kill_line, run.kills)) or "none")
    row("updates replayed", lambda run: str(run.replayed))
    row("audit", _audit)
    row("seconds", lambda run: f"{run.seconds:.0f}")
    return table


def figures_of(undisturbed: Proved, killed: Proved, verdict: Verdict) -> dict[str, float | None]:
    """Returns the numbers of a proof."""
    return {
        "holds": float(verdict.holds),
        **{f"{key.removesuffix('_digest')}_equal": float(key not in verdict.unequal) for key in DIGESTS},
        "audits_sound": float(not verdict.unsound),
        "kills": float(sum(kill.hit for kill in killed.kills)),
        "updates_replayed": float(killed.replayed),
        "accuracy_sft": undisturbed.results.get("accuracy_sft"),
        "accuracy": undisturbed.results.get("accuracy"),
        "seconds_undisturbed": undisturbed.seconds,
        "seconds_killed": killed.seconds,
    }


def as_details(undisturbed: Proved, killed: Proved) -> dict[str, object]:
    """Returns all findings, for programs."""
    return {
        "undisturbed": {key: undisturbed.results.get(key) for key in ("run", *SAME)},
        "killed": {key: killed.results.get(key) for key in ("run", *SAME)},
        "kills": [asdict(kill) for kill in killed.kills],
        "audits": [undisturbed.audit, killed.audit],
    }


def _digest(key: str, run: Proved) -> str:
    return str(run.results.get(key))[:DIGEST_CHARACTERS]


def _accuracy(run: Proved) -> str:
    before = run.results.get("accuracy_sft")
    after = run.results.get("accuracy")
    return "none" if before is None or after is None else f"{before:.3f} after SFT, {after:.3f} at the end"


def _kill_line(kill: Killed) -> str:
    return str(kill) if kill.hit else f"{kill}: between two phases, does not count"


def _audit(run: Proved) -> str:
    return "sound" if run.audit.get("sound") else f"not sound: {run.audit.get('disagreement')}"
