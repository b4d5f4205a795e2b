"""The commands of `yatt`, in the order in which its help lists them.

Pure. A command is a row here and a function of its module; nothing else names it. What is missing here does not exist for
`yatt`; a test compares each row with what its module has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ops.people.roles import Permission

READ = Permission.READ
OPERATE = Permission.OPERATE
APPROVE = Permission.APPROVE
ADMINISTER = Permission.ADMINISTER


@dataclass(frozen=True, slots=True)
class CommandRow:
    """A command, or a group of commands.

    word: what follows `yatt`.
    module: below `ops`; its `app` has the command, or is the group.
    permission: what the caller's role must include; of a group, for each command in it.
    help: the first paragraph of its help, on one line.
    """

    word: str
    module: str
    permission: Permission | Mapping[str, Permission]
    help: str

    @property
    def permissions(self) -> Mapping[str, Permission]:
        """The permission of the command, or of each command in the group, by all words that follow `yatt`."""
        if isinstance(self.permission, Permission):
            return {self.word: self.permission}
        return {f"{self.word} {below}": permission for below, permission in self.permission.items()}


ROWS = (
    CommandRow(
        "train",
        "cli.commands.driving.train",
        OPERATE,
        "Start a new run and train it to its target; Ctrl-C stops it at the next safe point.",
    ),
    CommandRow(
        "resume",
        "cli.commands.driving.train",
        OPERATE,
        "Resume a run after its last commit, whether it was stopped, failed or was killed.",
    ),
    CommandRow(
        "stop",
        "cli.commands.driving.stopping",
        OPERATE,
        "Ask a run's driver to stop after the current iteration or within a time limit, with a checkpoint.",
    ),
    CommandRow(
        "checkpoint",
        "cli.commands.driving.stopping",
        OPERATE,
        "Ask a run's driver for a checkpoint after its current iteration; the run goes on.",
    ),
    CommandRow(
        "deploy",
        "cli.commands.driving.deploy",
        OPERATE,
        "Drive a run in scheduled windows: each continues where the last one ended, and ends with a checkpoint.",
    ),
    CommandRow(
        "window",
        "cli.commands.driving.window",
        OPERATE,
        "Begin a window of a deployment at once, in addition to its schedule, with other parameters if you like.",
    ),
    CommandRow(
        "init",
        "cli.commands.planning.init",
        READ,
        "Recognise what a data file means, and write a commented spec that runs on a model's folder.",
    ),
    CommandRow(
        "check",
        "cli.commands.planning.check",
        READ,
        "Check a spec before a run: all rows, prompts, reference answers, reward functions and the model's folder.",
    ),
    CommandRow(
        "fetch",
        "cli.commands.planning.fetch",
        OPERATE,
        "Fetch the models and datasets that a spec names on the Hugging Face Hub; `yatt train` does the same before a run.",
    ),
    CommandRow(
        "plan",
        "cli.commands.planning.plan",
        READ,
        "Predict what a spec needs on given devices: placement, memory by role and stage, times, and the assumptions made.",
    ),
    CommandRow(
        "fork",
        "cli.commands.driving.branches",
        OPERATE,
        "Create a new run that continues from an iteration of another run; start it with `yatt resume`.",
    ),
    CommandRow(
        "rollback",
        "cli.commands.driving.branches",
        OPERATE,
        "Return a run to an earlier iteration; `yatt resume` then continues on a new branch, with new samples.",
    ),
    CommandRow(
        "retry",
        "cli.commands.driving.branches",
        OPERATE,
        "Restore the full retry budget of a phase that failed too often, and resume the run.",
    ),
    CommandRow(
        "lineage",
        "cli.commands.driving.branches",
        READ,
        "Show a checkpoint's origin (data, code, spec, placement, parents, environment) and the run's branches.",
    ),
    CommandRow(
        "rm",
        "cli.commands.driving.deletion",
        ADMINISTER,
        "Delete runs that never began: their rows, folders, objects and MLflow runs.",
    ),
    CommandRow(
        "delete",
        "cli.commands.driving.deletion",
        ADMINISTER,
        "Delete runs for good, whether they have begun or not: their results, checkpoints, samples, metrics and MLflow runs.",
    ),
    CommandRow(
        "archive",
        "cli.commands.driving.deletion",
        ADMINISTER,
        "Delete what runs that have ended no longer need: older checkpoints, experience, their own Prefect databases.",
    ),
    CommandRow(
        "runs",
        "cli.commands.inspection.runs",
        READ,
        "List runs, running ones first, then the newest: state, progress, reward, held-out accuracy and age.",
    ),
    CommandRow(
        "show",
        "cli.commands.inspection.show",
        READ,
        "Show one run: results and digests, alarms, phases, failures, use of time, sessions and checkpoints.",
    ),
    CommandRow(
        "compare",
        "cli.commands.inspection.compare",
        READ,
        "Compare runs: the keys in which their specs differ, their digests, newest metrics, and curves over the same axes.",
    ),
    CommandRow(
        "costs",
        "costs.command",
        READ,
        "Show what runs cost: money, device hours, energy and carbon, by the prices in force at the time.",
    ),
    CommandRow(
        "du",
        "cli.commands.inspection.usage",
        READ,
        "Show where the disk goes: the bytes of each run by kind of file, and of the rest of the home.",
    ),
    CommandRow(
        "watch",
        "cli.commands.inspection.watch",
        READ,
        "Follow a run: phase, progress, curves, throughput, devices and alarms; ends with its driver.",
    ),
    CommandRow(
        "open",
        "cli.commands.inspection.pages",
        READ,
        "Open a run's page in the browser: in the dashboard, or in MLflow or Prefect.",
    ),
    CommandRow(
        "alarms",
        "cli.commands.inspection.alarms",
        READ,
        "List a run's alarms, oldest first; `-o json` includes the values that raised them.",
    ),
    CommandRow(
        "logs",
        "cli.commands.inspection.logs",
        READ,
        "Print a run's logs, oldest first; `-o json` prints one object per line. Actors on other nodes are shown as ACTOR@NODE.",
    ),
    CommandRow(
        "rollouts",
        "cli.commands.inspection.rollouts",
        READ,
        "Show the prompts, responses and rewards of an iteration, or compare two iterations.",
    ),
    CommandRow(
        "scores",
        "cli.commands.inspection.scores",
        READ,
        "Show the slowest and the dearest scores of judges behind an endpoint.",
    ),
    CommandRow(
        "evaluate",
        "evaluation.command",
        OPERATE,
        "Measure a kept checkpoint, or a model folder, on the run's held-out tasks or rows, or on a suite of sets.",
    ),
    CommandRow(
        "evaluations",
        "evaluation.suites",
        READ,
        "Show the history of a run's suites: figures with intervals, and what is significantly worse than before.",
    ),
    CommandRow(
        "export",
        "cli.commands.checkpoints.export",
        READ,
        "Export a kept checkpoint as a Hugging Face model folder: config, tokenizer and weights.",
    ),
    CommandRow(
        "promote",
        "cli.commands.checkpoints.promote",
        APPROVE,
        "Verify a kept checkpoint and give it an alias; the previous champion becomes `rollback`.",
    ),
    CommandRow(
        "aliases",
        "cli.commands.checkpoints.promote",
        READ,
        "Show which checkpoints a run's aliases point to, and the history of promotions: who, when and why.",
    ),
    CommandRow(
        "approvals",
        "approvals.command",
        READ,
        "List what waits for a decision, newest first: the question, who may decide, and the deadline.",
    ),
    CommandRow(
        "approve",
        "approvals.command",
        APPROVE,
        "Approve what waits: a run may go on, a checkpoint may become champion. The decision is final.",
    ),
    CommandRow(
        "reject",
        "approvals.command",
        APPROVE,
        "Reject what waits: the run stays where it is, the checkpoint does not become champion. The decision is final.",
    ),
    CommandRow(
        "restore",
        "backup.restore",
        ADMINISTER,
        "Restore a backup into a new home, under any path and into SQLite or PostgreSQL.",
    ),
    CommandRow(
        "maintain",
        "backup.maintain",
        OPERATE,
        "Do now what `yatt up` does each day: finish deletions, prune idle runs, audit, back up, tidy the ledger.",
    ),
    CommandRow(
        "migrate",
        "backup.maintain",
        OPERATE,
        "Bring the ledger to the tables of this version, in one transaction, while runs go on.",
    ),
    CommandRow(
        "upgrade",
        "backup.upgrade",
        OPERATE,
        "Say what this version of YATT and its libraries changes of a home, then migrate its ledger.",
    ),
    CommandRow(
        "up",
        "cli.commands.services.group",
        OPERATE,
        "Start Prefect, a worker, MLflow and the dashboard on this machine, and keep them running until Ctrl-C.",
    ),
    CommandRow(
        "down",
        "cli.commands.services.group",
        OPERATE,
        "Stop this home's service group, whichever terminal it runs in, and clean up after a killed one.",
    ),
    CommandRow(
        "status",
        "cli.commands.services.group",
        READ,
        "Show state, address, restarts and last trouble of the group's members; exit code 1 unless all are up.",
    ),
    CommandRow(
        "dashboard",
        "cli.commands.services.dashboard",
        READ,
        "Serve the dashboard until Ctrl-C: web pages, a JSON API under /api/v1, and /metrics for Prometheus.",
    ),
    CommandRow(
        "schema",
        "cli.commands.planning.schema",
        READ,
        "Print the JSON Schema of spec files, which editors use for validation and completion.",
    ),
    CommandRow(
        "doctor",
        "cli.commands.planning.doctor",
        READ,
        "Check this machine and the home folder; exit code 1 if a run could not work.",
    ),
    CommandRow(
        "placement",
        "cli.commands.inspection.placement",
        {"explain": READ, "replay": READ, "gantt": READ},
        "Explain why devices had their roles, and compare with other placement policies.",
    ),
    CommandRow(
        "soup",
        "soups.command",
        {"run": OPERATE, "resume": OPERATE, "show": READ, "merge": OPERATE},
        "Train one model per objective on mixed rewards, and merge them for any preference (Bone Soup, arXiv 2502.10762).",
    ),
    CommandRow(
        "sweep",
        "sweeps.command",
        {"run": OPERATE, "resume": OPERATE, "show": READ},
        "Try settings of a spec side by side, stop weak ones early, and name the best. `yatt sweep SPEC` starts one.",
    ),
    CommandRow(
        "pipeline",
        "pipelines.command",
        {"run": APPROVE, "resume": APPROVE, "show": READ, "list": READ, "deploy": APPROVE, "backfill": OPERATE},
        "Run jobs that need each other, from supervised training to promotion; what has not changed is skipped.",
    ),
    CommandRow(
        "queue",
        "queueing.command",
        {
            "init": OPERATE,
            "submit": OPERATE,
            "priority": OPERATE,
            "pause": OPERATE,
            "resume": OPERATE,
            "remove": OPERATE,
            "devices": OPERATE,
            "serve": OPERATE,
        },
        "Share devices between runs: pools, priorities, fair share, preemption. Without a command, list the queue.",
    ),
    CommandRow(
        "audit",
        "cli.commands.inspection.audit",
        {"verify": READ, "home": READ, "weights": READ},
        "Check that a run's files, metrics and live weights match its ledger.",
    ),
    CommandRow(
        "backup",
        "backup.backup",
        {"create": ADMINISTER, "list": READ, "verify": READ, "prune": ADMINISTER},
        "Back up the ledger and the files of all runs, while they go on.",
    ),
    CommandRow(
        "token",
        "cli.commands.services.tokens",
        {"create": ADMINISTER, "list": ADMINISTER, "revoke": ADMINISTER},
        "Manage the tokens with which people and programs act on runs.",
    ),
    CommandRow(
        "user",
        "cli.commands.services.users",
        {
            "add": ADMINISTER,
            "list": ADMINISTER,
            "role": ADMINISTER,
            "grant": ADMINISTER,
            "revoke": ADMINISTER,
            "remove": ADMINISTER,
        },
        "Manage users and their roles: viewer, operator, approver, admin.",
    ),
)
"""Commands first, then groups."""
COMMANDS: Mapping[str, Permission] = MappingProxyType(
    {words: permission for row in ROWS for words, permission in row.permissions.items()}
)
"""The permission of each command."""


def permission_of(path: tuple[str, ...]) -> Permission:
    """Returns the permission that a command needs."""
    return COMMANDS.get(" ".join(path), ADMINISTER)
