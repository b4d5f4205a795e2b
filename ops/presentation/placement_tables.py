"""Text output of `yatt placement`: explanations, replays, comparisons and spans as lines and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ops.presentation.output import message, write, write_table
from ops.presentation.placement_words import HOW, role_name, roles_text
from ops.presentation.words import size
from yatt_core.counting import many
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.planning.files import LOST_WITH_A_NODE

if TYPE_CHECKING:
    from flows.placement.disks import Disk
    from flows.placement.explain import Explanation, Gantt, LengthStatistics, RoleUse, SeenWork
    from flows.placement.replay import ComparedDecision, PolicyComparison, ReplayedDecision
    from flows.placement.seats import SeatSpan
    from yatt_core.placement.occupancy import Change, RoleSpan

WIDTH = 72
MARKS = {ROLLOUT: "█", JUDGE: "▒", "": "·"}


# -- explain ---------------------------------------------------------------------------------------------------------


def print_explanation(found: Explanation) -> None:
    """Prints a decision and its outcome."""
    state = "" if found.committed else ", in progress"
    write(f"{found.run}, iteration {found.iteration} of branch {found.branch}{state}: {found.mode}")
    for name, value in _facts(found):
        write(f"  {name:<12}{value}")
    if found.seen:
        columns = (
            "based on",
            "samples",
            "response tokens",
            "p50",
            "p95",
            "longest",
            "judge tokens",
            "p50",
            "p95",
            "longest",
        )
        write_table(columns, [_seen_row(seen) for seen in found.seen])
    for lost in found.lost:
        write(f"lost input: {lost}")
    late = [change for change in found.changes if change.how == "start"]
    if late:
        numbers = instance_list(change.instance for change in late)
        last = max(change.serves_s or 0.0 for change in late)
        write(f"joined at the start, the last after {last:.2f} s: instances {numbers}")
    if asked := [change for change in found.changes if change.how != "start"]:
        write_table(
            ("requested at s", "instance", "from", "to", "how", "serves from s"), [_change_row(each) for each in asked]
        )
    if any(found.moves.values()):
        write(f"also: {found.moves['take']} moves of stragglers, {found.moves['intake']} intake limits set")
    if found.roles:
        write_roles(found.roles)
        write(f"idle fraction of all devices: {found.idle_fraction:.1%}")
    if found.seats:
        write_table(("actor", "node", "device", "host memory", "GPU memory"), [_seat_row(span) for span in found.seats])
    write_disks(found.disks)


def write_disks(disks: Sequence[Disk]) -> None:
    """Writes which nodes share the disk of the run's folder, and what is lost with one that does not; nothing if all do."""
    if disks:
        write_table(("disk", "nodes"), [(number, ", ".join(disk.nodes)) for number, disk in enumerate(disks, 1)])
        write(
            f"with a node that has a disk of its own are lost: {', '.join(LOST_WITH_A_NODE)}; the rest is on the object store"
        )


def _facts(found: Explanation) -> Iterator[tuple[str, str]]:
    for role, numbers in ((ROLLOUT, found.rolling), (JUDGE, found.judging)):
        if numbers:
            yield role_name(role), f"{many(len(numbers), 'instance')} from the start: {instance_list(numbers)}"
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


def _seat_row(span: SeatSpan) -> tuple[object, ...]:
    seat = span.seat
    memory = (size(count) if count else None for count in (seat.host_bytes, seat.gpu_bytes))
    return (seat.actor, seat.node, seat.device, *memory)


def _seen_row(seen: SeenWork) -> tuple[object, ...]:
    name = f"iteration {seen.iteration} of {seen.run}"
    return (name, seen.samples, *_lengths(seen.responses), *_lengths(seen.judgements))


def _lengths(lengths: LengthStatistics | None) -> tuple[object, ...]:
    if lengths is None:
        return (None,) * 4
    return (lengths.tokens, lengths.p50, lengths.p95, lengths.longest)


def _change_row(change: Change) -> tuple[object, ...]:
    names = (role_name(change.before), role_name(change.after))
    return (change.asked_s, change.instance, *names, HOW[change.how], change.serves_s)


def write_roles(roles: Iterable[RoleUse]) -> None:
    """Writes a table of device time by role."""
    rows = [
        (
            role_name(use.role),
            round(use.device_s, 1),
            *(
                (round(use.busy_s, 1), 100 * use.idle_fraction, use.tokens, use.tokens_per_s)
                if use.role
                else (None,) * 4
            ),
        )
        for use in roles
    ]
    write_table(("role", "device seconds", "busy seconds", "idle %", "tokens", "tokens/s"), rows)


def instance_list(numbers: Iterable[int]) -> str:
    """Formats numbers as ranges, such as 0-4, 6."""
    from flows.branching.restore_points import ranges

    return ranges(set(numbers))


# -- replay ----------------------------------------------------------------------------------------------------------


def print_replayed(rows: Sequence[ReplayedDecision]) -> None:
    """Prints whether the replay reproduced each recorded decision."""
    table = [
        (
            row.iteration,
            row.mode,
            roles_text(row.recorded),
            "same" if row.same else "cannot be replayed" if row.replayed is None else "differs",
            row.predicted_s,
            row.collect_s,
        )
        for row in rows
    ]
    write_table(("iteration", "policy", "start", "replayed", "predicted s", "collect s"), table)
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
    table = [_compared_row(row, longest) for row in comparison.rows]
    columns = (
        "iteration",
        "start",
        comparison.policy,
        "measured s",
        "simulated s",
        f"{comparison.policy} s",
        "ratio",
        "",
    )
    write_table(columns, table)
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


def _compared_row(row: ComparedDecision, longest: float) -> tuple[object, ...]:
    ratio = row.other_s / row.recorded_s if row.other_s is not None and row.recorded_s else None
    start = "" if row.start is None else "same" if row.same else roles_text(row.start)
    bar = "█" * round(20 * row.other_s / longest) if row.other_s is not None and longest else ""
    seconds = (row.collect_s, row.recorded_s, row.other_s)
    return (row.iteration, roles_text(row.recorded), start, *seconds, ratio, bar)


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
    write(f"{'':>9} {MARKS[ROLLOUT]} rollout  {MARKS[JUDGE]} judge  {MARKS['']} switching")
    write_roles(found.roles)
    write(f"idle fraction of all devices: {found.idle_fraction:.1%}")


def _line(spans: Sequence[RoleSpan], collect_s: float) -> str:
    """Divides collect into `WIDTH` equal parts, and returns the mark of the instance's role in the middle of each."""
    middles = ((place + 0.5) * collect_s / WIDTH for place in range(WIDTH))
    return "".join(
        next((MARKS[span.role] for span in spans if span.start_s <= middle < span.end_s), " ") for middle in middles
    )
