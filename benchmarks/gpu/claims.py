"""Every claim about GPUs, as a table: its key, what it says, what checks it, and how many GPUs that takes.

Consumes nothing; imports neither torch nor the product, so that the table can be read anywhere. A check is a function
`(Place, *options) -> Finding` of a module of this package; what goes wrong in it is raised, and tells that the claim fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

DTYPES = ("float32", "bfloat16")
TRAINERS = ("torch", "fsdp2", "megatron")
TITLES = {"torch": "torch", "fsdp2": "FSDP2", "megatron": "Megatron-Core"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where claims are checked.

    folder: for files, deleted afterwards.
    devices: names of the GPUs, as in `CUDA_VISIBLE_DEVICES`; empty names stand for cores.
    stand_in: whether cores and host memory take the place of GPUs, with small sizes.
    """

    folder: Path
    devices: tuple[str, ...]
    stand_in: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found.

    said: the finding in a few words.
    figures: numbers by name; None for one that has no meaning here.
    """

    holds: bool
    said: str
    figures: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim.

    says: the claim, as docs/gpu.md has it.
    module, check: the function that checks it; claims of one module share a process.
    options: further arguments of the function.
    gpus: how many it takes.
    seconds: after which it has failed, on GPUs; cores get `PATIENCE` times as many.
    """

    key: str
    says: str
    module: str
    check: str
    options: tuple[str, ...] = ()
    gpus: int = 1
    seconds: float = 60.0


PATIENCE = 10


def _engines() -> tuple[Claim, ...]:
    single = [
        Claim(
            key=f"{trainer}_trainer",
            says=f"The {TITLES[trainer]} trainer learns what the torch trainer learns on cores, in float32, up to rounding",
            module="engines",
            check="trainer_learns",
            options=(trainer,),
        )
        for trainer in TRAINERS
    ]
    double = [
        Claim(
            key=f"{trainer}_two_ranks",
            says=f"So do two ranks of {TITLES[trainer]} on two GPUs, over NCCL",
            module="engines",
            check="two_ranks_learn",
            options=(trainer,),
            gpus=2,
        )
        for trainer in TRAINERS
        if trainer != "torch"
    ]
    rollout = [
        Claim(
            key=f"torch_rollout_{dtype}",
            says=f"Tokens that the torch engine samples in {dtype} have the log-probabilities that cores compute in float32",
            module="engines",
            check="rollout_is_right",
            options=(dtype,),
        )
        for dtype in DTYPES
    ]
    return (*rollout, *single, *double)


def _exactness() -> tuple[Claim, ...]:
    batches = [
        [
            Claim(
                key=f"fixed_members_{dtype}",
                says=f"A decode batch in {dtype} that is generated again as a whole, after other work, has the same bits",
                module="exactness",
                check="fixed_members_repeat",
                options=(dtype,),
            ),
            Claim(
                key=f"batch_invariance_{dtype}",
                says=f"If the torch engine declares `batch_invariant` in {dtype}, responses have the same bits in any batch",
                module="exactness",
                check="invariance_is_as_declared",
                options=(dtype,),
            ),
        ]
        for dtype in DTYPES
    ]
    # From here on the process has asked for sums that repeat.
    sums = Claim(
        key="deterministic_sums",
        says="Sums, products, attention and their gradients repeat their bits once a trainer has asked for it",
        module="exactness",
        check="sums_repeat",
    )
    checkpoints = [
        Claim(
            key=f"checkpoint_{dtype}_{trainer}",
            says=f"A run with the {TITLES[trainer]} trainer in {dtype} that resumes from its checkpoint has the bits of "
            "an undisturbed one",
            module="exactness",
            check="checkpoint_resumes",
            options=(dtype, trainer),
        )
        for dtype in DTYPES
        for trainer in TRAINERS
    ]
    return (*chain.from_iterable(batches), sums, *checkpoints)


def _fresh_processes() -> tuple[Claim, ...]:
    found = list[Claim]()
    for dtype in DTYPES:
        found.append(
            Claim(
                key=f"repeats_rollout_{dtype}",
                says=f"Fresh processes sample the same bits in {dtype}",
                module="repeats",
                check="rollout_repeats",
                options=(dtype,),
            )
        )
        for trainer in TRAINERS:
            found.append(
                Claim(
                    key=f"repeats_trainer_{dtype}_{trainer}",
                    says=f"In fresh processes, two updates of the {TITLES[trainer]} trainer in {dtype} end with the same bits",
                    module="repeats",
                    check="trainer_repeats",
                    options=(dtype, trainer),
                )
            )
    return tuple(found)


TRANSFERS = (
    Claim(
        key="nccl_alone",
        says="NCCL opens a group of one rank, and sums, broadcasts and gathers in it",
        module="sync",
        check="group_of_one",
    ),
    Claim(
        key="host_sync",
        says="Weights that pass through host memory arrive with the digests that the trainer has of them",
        module="sync",
        check="weights_pass_the_host",
    ),
    Claim(
        key="device_ipc",
        says="An engine's process copies weights from the memory of a trainer's on the same GPU, with the same digests",
        module="sync",
        check="weights_are_borrowed",
    ),
    Claim(
        key="device_ipc_delta",
        says="So it does with a transfer of changes alone after an update, which has fewer bytes",
        module="sync",
        check="changes_are_borrowed",
    ),
    Claim(
        key="nccl_two",
        says="Weights go by NCCL to an engine on a second GPU, with the same digests",
        module="sync",
        check="weights_go_by_nccl",
        gpus=2,
    ),
    Claim(
        key="nccl_two_delta",
        says="So do changes alone",
        module="sync",
        check="changes_go_by_nccl",
        gpus=2,
    ),
    Claim(
        key="device_digests",
        says="A bucket's digest that is computed on the GPU is the one that cores compute, and reveals a changed bit",
        module="buckets",
        check="digests_agree",
    ),
    Claim(
        key="worker_ipc",
        says="A process beside an engine's, such as a vLLM worker's, takes buckets from the GPU memory to which they came",
        module="buckets",
        check="worker_takes_buckets",
    ),
    Claim(
        key="worker_ipc_two",
        says="So does one that computes on a second GPU",
        module="buckets",
        check="second_worker_takes_buckets",
        gpus=2,
    ),
)

MEMORY = (
    *(
        Claim(
            key=f"offload_{trainer}",
            says=f"The {TITLES[trainer]} trainer's tensors leave the GPU, and come back with the same bits",
            module="memory",
            check="trainer_leaves",
            options=(trainer,),
        )
        for trainer in TRAINERS
    ),
    Claim(
        key="sleep_rollout",
        says="The torch engine's weights leave the GPU, and come back with the same bits; it answers as before",
        module="memory",
        check="rollout_leaves",
    ),
    *(
        Claim(
            key=f"plan_memory_{trainer}",
            says=f"What the {TITLES[trainer]} trainer holds, and takes in an update, is what `yatt plan` says",
            module="memory",
            check="plan_is_right",
            options=(trainer,),
        )
        for trainer in TRAINERS
    ),
)

SPEED = (
    Claim(
        key="rollout_speed",
        says="A billion parameters in bfloat16 generate (a measure, no limit)",
        module="speed",
        check="rollout_speed",
        seconds=100.0,
    ),
    Claim(
        key="train_mfu",
        says="They learn: operations of the model over those of the card's data sheet (a measure, no limit)",
        module="speed",
        check="train_speed",
        seconds=100.0,
    ),
    Claim(
        key="move_speed",
        says="Their weights go to the engine, and their tensors to the host and back (a measure, no limit)",
        module="speed",
        check="move_speed",
    ),
)

CLAIMS: tuple[Claim, ...] = (*_engines(), *_exactness(), *TRANSFERS, *MEMORY, *SPEED, *_fresh_processes())
