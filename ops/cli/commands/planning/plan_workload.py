"""`yatt plan` of a workload of one's own: what its ranks and samplers hold, as tables or as one JSON object."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ops.cli.commands.planning.plan_document import cluster_document, files_document, memory_document
from ops.cli.commands.planning.plan_tables import WITHOUT_CACHE, print_lines, print_memory, print_shortages
from ops.presentation.output import write, write_table
from ops.presentation.words import large_number
from yatt_core.counting import many
from yatt_core.planning.own_workload import WorkloadPlan


def print_workload_plan(made: WorkloadPlan) -> None:
    """Writes the plan as tables."""
    spec = made.spec
    needs = made.needs
    trained = "all of them trained"
    if needs.trained < needs.parameters:
        trained = f"{large_number(needs.trained)} of them trained"
    write(
        f"{spec.name} on {made.cluster} ({many(made.cluster.devices, 'device')}): "
        f"{large_number(needs.parameters)} parameters, {trained}"
    )
    write("it fits; all roles stay in memory" if made.fits else "it does not fit")
    write("")
    rows = [("trainer", many(spec.trainer.engine.ranks, "rank"))]
    if needs.sampler is not None:
        processes = many(spec.engine_instances, "process")
        rows.append(("samplers", f"{processes}, weights in {made.sampler_dtype}"))
    write_table(("role", "on"), rows, "Placement")
    if needs.work:
        counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in needs.work.items())
        write(f"work: {counts}")
    write("")
    print_memory(made.roles, made.totals, made.place.owner, WITHOUT_CACHE)
    if not made.fits:
        print_shortages(made.shortages)
    if made.files.described():
        write(f"\n{made.files.described()}")
    print_lines("Assumed", made.assumed)


def workload_document(made: WorkloadPlan) -> dict[str, Any]:
    """Returns the plan as a JSON object, with a stable set of keys; bytes are plain numbers."""
    spec = made.spec
    needs = made.needs
    return {
        "name": spec.name,
        "spec_digest": spec.digest,
        "workload": spec.workload.title,
        "fits": made.fits,
        "parameters": needs.parameters,
        "trained": needs.trained,
        "state_bytes": needs.state,
        "cluster": cluster_document(made.cluster),
        "files": files_document(made.files),
        "placement": {
            "trainer": {"ranks": spec.trainer.engine.ranks},
            "samplers": None
            if needs.sampler is None
            else {"instances": spec.engine_instances, "dtype": made.sampler_dtype},
        },
        "work": dict(needs.work),
        "memory_of": made.place.owner,
        "memory": memory_document(made.roles, made.totals),
        "shortages": [asdict(shortage) for shortage in made.shortages],
        "assumed": list(made.assumed),
    }
