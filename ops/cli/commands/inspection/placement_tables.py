"""Text output of `yatt placement`: explanations, replays, comparisons and spans as lines and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ops.presentation.columns import Column, Columns
from ops.presentation.output import message, write, write_list
from ops.presentation.placement_words import role_name, roles_text
from yatt_core.counting import many
from yatt_core.placement.actions import JUDGE, ROLLOUT, TRAINING
from yatt_core.planning.files import LOST_WITH_A_NODE

if TYPE_CHECKING:
    from flows.placement.disks import Disk
    from flows.placement.explain import Explanation, Gantt, RoleUse
    from flows.placement.replay import ComparedDecision, PolicyComparison, ReplayedDecision
    from yatt_core.placement.occupancy import RoleSpan

WIDTH = 72
MARKS = {ROLLOUT: "█", JUDGE: "▒", "": "·", TRAINING: "t"}
DISKS: Columns[tuple[int, Disk]] = (
    Column("disk", lambda numbered: numbered[0], number=True),
    Column("nodes", lambda numbered: ", ".join(numbered[1].nodes)),
)


# -- explain ---------------------------------------------------------------------------------------------------------


def print_explanation(found: Explanation) -> None:
    """Prints a decision and its outcome."""
    from ops.queries.placement import CHANGES, SEATS, SEEN

    state = "" if found.committed else ", in progress"
    write(f"{found.run}, iteration {found.iteration} of branch {found.branch}{state}: {found.mode}")
    for name, value in _facts(found):
        write(f"  {name:<12}{value}")
    if found.seen:
        write_list(SEEN, found.seen)
    for lost in found.lost:
        write(f"lost input: {lost}")
    late = [change for change in found.changes if change.how == "start"]
    if late:
        numbers = instance_list(change.instance for change in late)
        last = max(change.serves_s or 0.0 for change in late)
        write(f"joined at the start, the last after {last:.2f} s: instances {numbers}")
    if asked := [change for change in found.changes if change.how != "start"]:
        write_list(CHANGES, asked)
    if any(found.moves.values()):
        write(f"also: {found.moves['take']} moves of stragglers, {found.moves['intake']} intake limits set")
    if found.roles:
        write_roles(found.roles)
        write(f"idle fraction of all devices: {found.idle_fraction:.1%}")
    if found.seats:
        write_list(SEATS, found.seats)
    write_disks(found.disks)


def write_disks(disks: Sequence[Disk]) -> None:
    """Writes which nodes share the disk of the run's folder, and what is lost with one that does not; nothing if all do."""
    if disks:
        write_list(DISKS, list(enumerate(disks, 1)))
        write(
            f"with a node that has a disk of its own are lost: {', '.join(LOST_WITH_A_NODE)}; the rest is on the object store"
        )


def _facts(found: Explanation) -> Iterator[tuple[str, str]]:
    for role, numbers in ((ROLLOUT, found.rolling), (JUDGE, found.judging)):
        if numbers:
            yield role_name(role), f"{many(len(numbers), 'instance')} from the start: {instance_list(numbers)}"
    if found.trainer:
        yield "trainer", found.trainer
    yield "reason", found.reason
    if not found.seen and not found.lost:
        yield "based on", "no earlier iteration"
    if found.predicted_s is not None:
        yield "predicted", f"{found.predicted_s:.2f} s of collect"
    if found.collect_s is not None:
        error = (
            ""
            if found.error is None
            else f"; the prediction was {abs(found.error):.1%} too {'high' if found.error > 0 else 'low'}"
        )
        yield "took", f"{found.collect_s:.2f} s, of which {found.judging_s:.2f} s after the last rollout{error}"
    if found.seconds:
        yield "phases", ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.seconds.items())


def write_roles(roles: Iterable[RoleUse]) -> None:
    """Writes a table of device time by role."""
    from ops.queries.placement import ROLES

    write_list(ROLES, roles)


def instance_list(numbers: Iterable[int]) -> str:
    """Formats numbers as ranges, such as 0-4, 6."""
    from flows.branching.restore_points import ranges

    return ranges(set(numbers))


# -- replay ----------------------------------------------------------------------------------------------------------


def print_replayed(rows: Sequence[ReplayedDecision]) -> None:
    """Prints whether the replay reproduced each recorded decision."""
    write_list(REPLAYED, rows)
    differing = [row for row in rows if not row.same]
    for row in differing:
        for why in row.why:
            write(f"iteration {row.iteration}: {why}")
    if differing:
        message(f"not as recorded: {instance_list(row.iteration for row in differing)}")
    else:
        decisions = f"all {len(rows)} decisions are" if len(rows) > 1 else "the decision is"
        write(f"{decisions} exactly as recorded")


def print_compared(comparison: PolicyComparison) -> None:
    """Prints what another policy would have decided and cost."""
    longest = max((row.other_s or row.recorded_s or 0.0 for row in comparison.rows), default=0.0)
    write_list(_compared_columns(comparison.policy, longest), comparison.rows)
    for row in comparison.rows:
        for why in row.why:
            write(f"iteration {row.iteration}: {why}")
    if comparison.ratio is None:
        write("no iteration has both simulations, so there is nothing to compare")
    else:
        write(
            f"{comparison.policy} over {many(comparison.iterations, 'iteration')}: {comparison.other_s:.1f} s of simulated "
            f"collect, {comparison.ratio:.3f} of the {comparison.recorded_s:.1f} s that the recorded decisions take in the same "
            f"simulation; measured: {comparison.collect_s:.1f} s"
        )
    if comparison.differing:
        message(f"not as recorded: {instance_list(comparison.differing)}")


def _replay(row: ReplayedDecision) -> str:
    if row.same:
        return "same"
    return "cannot be replayed" if row.replayed is None else "differs"


REPLAYED: Columns[ReplayedDecision] = (
    Column("iteration", lambda row: row.iteration, number=True),
    Column("policy", lambda row: row.mode),
    Column("start", lambda row: roles_text(row.recorded)),
    Column("replayed", _replay),
    Column("predicted s", lambda row: row.predicted_s, number=True),
    Column("collect s", lambda row: row.collect_s, number=True),
)


def _compared_columns(policy: str, longest: float) -> Columns[ComparedDecision]:
    """Returns the columns of a comparison with another policy; longest: the seconds of the longest bar."""

    def start(row: ComparedDecision) -> str:
        return "" if row.start is None else "same" if row.same else roles_text(row.start)

    def ratio(row: ComparedDecision) -> float | None:
        return row.other_s / row.recorded_s if row.other_s is not None and row.recorded_s else None

    def bar(row: ComparedDecision) -> str:
        return "█" * round(20 * row.other_s / longest) if row.other_s is not None and longest else ""

    return (
        Column("iteration", lambda row: row.iteration, number=True),
        Column("start", lambda row: roles_text(row.recorded)),
        Column(policy, start),
        Column("measured s", lambda row: row.collect_s, number=True),
        Column("simulated s", lambda row: row.recorded_s, number=True),
        Column(f"{policy} s", lambda row: row.other_s, number=True),
        Column("ratio", ratio, number=True),
        Column("", bar),
    )


# -- gantt -----------------------------------------------------------------------------------------------------------


def print_gantt(found: Gantt) -> None:
    """Prints one line per instance; adjacent instances whose lines would be equal share a single line."""
    write(f"{found.run}, iteration {found.iteration}: {found.mode}, {found.collect_s:.2f} s of collect")
    lines = [
        _line([span for span in found.spans if span.instance == index], found.collect_s)
        for index in range(found.instances)
    ]
    for line, group in groupby(range(found.instances), key=lambda index: lines[index]):
        numbers = list(group)
        name = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        write(f"{name:>9} {line}")
    kept = f"  {MARKS[TRAINING]} trainer" if any(span.role == TRAINING for span in found.spans) else ""
    write(f"{'':>9} {MARKS[ROLLOUT]} rollout  {MARKS[JUDGE]} judge  {MARKS['']} switching{kept}")
    write_roles(found.roles)
    write(f"idle fraction of all devices: {found.idle_fraction:.1%}")


def _line(spans: Sequence[RoleSpan], collect_s: float) -> str:
    """Divides collect into `WIDTH` equal parts, and returns the mark of the instance's role in the middle of each."""
    middles = ((place + 0.5) * collect_s / WIDTH for place in range(WIDTH))
    return "".join(
        next((MARKS[span.role] for span in spans if span.start_s <= middle < span.end_s), " ") for middle in middles
    )
