"""A small run with a trained judge, made once a session."""

import pytest
import torch

from tests.inputs.example_specs import EXACT, SPELL, run_spec
from tests.judges.parts import TEMPLATE
from yatt_core.input_building.materialise import materialise

torch.set_num_threads(1)

SIZES = {
    "hidden_size": 32,
    "layers": 1,
    "heads": 2,
    "key_value_heads": 2,
    "intermediate_size": 48,
    "max_positions": 128,
}
TRAINING = {"demonstrations": 100, "batch_size": 16, "max_steps": 6, "probe_every": 3, "stop_accuracy": 1.0}
JUDGE = {
    "kind": "generative",
    "name": "judge",
    "model": {"kind": "trained", "network": {"kind": "from_config", **SIZES}, "training": TRAINING},
    "template": TEMPLATE,
    "judgements": 2,
    "max_new_tokens": 2,
}


def judged_spec(**changes):
    """A spec over few words, rewarded by a judge that hardly knows anything."""
    source = {**SPELL, "size": 200}
    return run_spec(
        source, data={"held_out": 20, "probe": 10}, rewards={"parts": [*EXACT, {**JUDGE, **changes}]}, seed=3
    )


@pytest.fixture(scope="session")
def judged(tmp_path_factory):
    """The spec and the folder of its inputs."""
    spec = judged_spec()
    folder = tmp_path_factory.mktemp("judged") / "r"
    materialise(spec, folder)
    return spec, folder / "inputs"
