"""How a run is described in the tracker: tags and a note, for its own tracking run and for those of its branches.

Consumes a run's id and its spec; produces plain text. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from yatt_core.code_revision import code_revision
from yatt_core.counting import many
from yatt_core.spec import RunSpec


def describing_tags(run: str, spec: RunSpec, branch: int = 0) -> dict[str, str]:
    """Returns the tags of a tracking run, including the spec's own."""
    return {
        **spec.tracking.tags,
        "yatt.run": run,
        "yatt.spec": spec.name,
        "yatt.spec_digest": spec.digest,
        "yatt.branch": str(branch),
        "yatt.code_revision": code_revision(),
        "yatt.version": version("yatt"),
    }


def note_of(run: str, spec: RunSpec, links: Mapping[str, str] | None = None) -> str:
    """Returns the note of a tracking run as Markdown: what the run is, its commands and its pages.

    links: addresses by title.
    """
    algorithm = f"advantages {spec.algorithm.advantage.kind}, loss {spec.algorithm.loss.kind}"
    if spec.objective is not None:
        algorithm = f"objective {spec.objective.kind}"
    if not spec.has.language_model:
        algorithm = f"workload {spec.workload.title}"
    rollout = f"rollout on {spec.rollout.engine.kind}, " if spec.has.sync else ""
    engines = f"{rollout}training on {spec.trainer.engine.kind}"
    lines = [
        f"**{run}** is a run of YATT: {algorithm} over {many(spec.iterations, 'iteration')}, {engines}.",
        "",
        *(f"- [{title}]({address})" for title, address in sorted((links or {}).items())),
        f"- state and phases: `yatt show {run}`",
        *([f"- samples: `yatt rollouts {run} --sort reward`"] if spec.has.controllers else []),
        f"- continue after a stop or a failure: `yatt resume {run}`",
        "",
        "Steps are iterations. The spec is in the parameters and in `spec.json`.",
    ]
    return "\n".join(lines)
