"""What a lease may be the right to: `run/ID`, `pipeline/ID`, `sweep/NAME`, `soup/NAME`, `suite/RUN/NAME`, `queue`, `home`.

Pure functions of the text that is the key of the table `lease`. It knows nothing of what a subject's holder does.
"""

from __future__ import annotations

RUN = "run"
"""To write to a run: its driver, or for a moment a command."""
PIPELINE = "pipeline"
"""To carry a pipeline on."""
SWEEP = "sweep"
SOUP = "soup"
"""To decide for a sweep or a soup, named by the run that keeps its record, and to have its runs driven."""
SUITE = "suite"
"""To follow a run and evaluate its checkpoints on a suite, named by both."""
QUEUE = "queue"
"""To give devices to the runs of the queue."""
HOME = "home"
"""To maintain the home."""
MADE_WHEN_TAKEN = (SWEEP, SOUP, SUITE, QUEUE, HOME)
"""Kinds whose rows exist from the first time that somebody asks for them; other rows are created with what they are for."""


def subject_of(kind: str, name: str = "") -> str:
    """Returns the subject of a kind; queue and home have no name, since a ledger has one of each."""
    return f"{kind}/{name}" if name else kind


def of_run(run: str) -> str:
    """Returns the subject of a run."""
    return subject_of(RUN, run)


def of_pipeline(pipeline: str) -> str:
    """Returns the subject of a run of a pipeline."""
    return subject_of(PIPELINE, pipeline)


def kind_of(subject: str) -> str:
    """Returns the kind of a subject."""
    return subject.partition("/")[0]


def name_of(subject: str) -> str:
    """Returns the name of a subject; empty if its kind has none."""
    return subject.partition("/")[2]


def in_words(subject: str) -> str:
    """Returns a subject for people, such as "run toy-1" or "the queue"."""
    kind = kind_of(subject)
    name = name_of(subject)
    return f"{kind} {name}" if name else f"the {kind}"
