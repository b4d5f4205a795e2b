"""A small spec with a judge, which is trained once per session."""

from pathlib import Path

import pytest
import torch

from examples.judge.folder import make_judge
from tests.inputs.example_specs import EXACT, SPELL, run_spec
from tests.judges.parts import TEMPLATE
from yatt_core.spec.sections.model import ModelFromConfig, SftSpec

torch.set_num_threads(1)

NETWORK = ModelFromConfig(hidden_size=32, layers=1, heads=2, key_value_heads=2, intermediate_size=48, max_positions=128)
TRAINING = SftSpec(demonstrations=100, batch_size=16, max_steps=6, probe_every=3, stop_accuracy=1.0)
JUDGE = {"kind": "generative", "name": "judge", "template": TEMPLATE, "judgements": 2, "max_new_tokens": 2}


def judged_spec(folder: Path, **changes):
    """Returns a spec with a small task, rewarded by exact rules and by the barely trained judge in a folder."""
    part = {**JUDGE, "model": {"kind": "folder", "path": str(folder)}, **changes}
    source = {**SPELL, "size": 200}
    return run_spec(source, data={"held_out": 20, "probe": 10}, rewards={"parts": [*EXACT, part]}, seed=3)


@pytest.fixture(scope="session")
def judged(tmp_path_factory):
    """Returns a spec and the folder of its judge."""
    folder = tmp_path_factory.mktemp("judged") / "judge"
    spec = judged_spec(folder)
    make_judge(spec, NETWORK, TRAINING)
    return spec, folder
