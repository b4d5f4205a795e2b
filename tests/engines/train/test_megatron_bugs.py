"""Two bugs in Megatron-Core 0.16's own checkpoints of a distributed optimizer over torch's AdamW.

Because of them `megatron/optimizer.py` moves its state by parameter instead of using the library's checkpoints. When
one of these tests fails, the library has been fixed and may be used for that part.
"""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.engines.train.support import make_model_folder, make_spec, random_task, update
from yatt_core.protocols.engines import RankContext

pytestmark = pytest.mark.verify
METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}


def _exercise(folder: Path) -> None:
    from megatron.core import dist_checkpointing

    from yatt_core.engines.train.megatron.cpu import on_this_device
    from yatt_core.engines.train.megatron.engine import MegatronTrainEngine
    from yatt_core.engines.train.ranks.process_group import close_process_group

    engine_spec = {"kind": "megatron", "dtype": "float32", "data_parallel_size": 1}
    spec = make_spec(trainer={"engine": engine_spec})
    engine = MegatronTrainEngine(spec, RankContext(folder, folder / "inputs", str(folder / "model"), 0))
    engine.connect(0, 1, "")
    engine.initialise()
    update(engine, random_task(folder, 1))
    optimizer: Any = engine.policy.optimizer._optimizer
    found: dict[str, Any] = {}
    with on_this_device():
        (folder / "library").mkdir()
        dist_checkpointing.save(_state(engine, optimizer, False), str(folder / "library"))
        loaded = dist_checkpointing.load(_state(engine, optimizer, True), str(folder / "library"))
        try:
            optimizer.load_state_dict(loaded["optimizer"])
        except KeyError as error:
            found["missing"] = error.args[0]
        _give_steps(optimizer)
        loaded = dist_checkpointing.load(_state(engine, optimizer, True), str(folder / "library"))
        optimizer.load_state_dict(loaded["optimizer"])
    steps = [state["step"] for state in optimizer.optimizer.state.values()]
    found["counters"] = (len(steps), len({step.data_ptr() for step in steps}))
    close_process_group()
    (folder / "found.pickle").write_bytes(pickle.dumps(found))


def _state(engine: Any, optimizer: Any, is_loading: bool) -> dict[str, Any]:
    model = engine.policy._part.module.sharded_state_dict()
    return {"model": model, "optimizer": optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=METADATA)}


def _give_steps(optimizer: Any) -> None:
    """Gives each parameter the step counter that the checkpoint lacks."""
    original = optimizer._set_main_param_and_optimizer_states

    def lent(parameter: Any, tensors: dict[str, Any]) -> None:
        group, number = optimizer.model_param_group_index_map[parameter]
        own = optimizer.optimizer.state[optimizer.optimizer.param_groups[group]["params"][number]]
        original(parameter, {"step": own["step"], **tensors})

    optimizer._set_main_param_and_optimizer_states = lent


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("megatron.core")
    folder = tmp_path_factory.mktemp("bugs")
    make_model_folder(folder / "model")
    worker = multiprocessing.get_context("spawn").Process(target=_exercise, args=(folder,))
    worker.start()
    worker.join(120)
    assert worker.exitcode == 0
    result: dict[str, Any] = pickle.loads((folder / "found.pickle").read_bytes())
    return result


def test_a_checkpoint_cannot_be_loaded_without_the_step(found: dict[str, Any]) -> None:
    assert found["missing"] == "step"


def test_loaded_parameters_count_their_steps_in_one_tensor(found: dict[str, Any]) -> None:
    """Torch's AdamW then increments it once per parameter, and the bias correction is silently wrong."""
    parameters, counters = found["counters"]
    assert parameters > 1
    assert counters == 1
