"""The recorded environment of a run: all that an update's bits depend on, without heavy imports for a virtual run."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch

import yatt_core
from tests.engines.rollout.cases import build_model
from tests.spec.trees import ROOT, VIRTUAL, spec
from yatt_core import code_revision as revision
from yatt_core.bfloat16.way import way_of_processor
from yatt_core.code_revision import code_revision
from yatt_core.engines import environment
from yatt_core.engines.environment import bfloat16_roles, environment_facts, facts_of_ranks, mixed_facts, rollout_facts
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.spec import load_spec


def test_a_real_run_depends_on_libraries_processor_and_layout():
    facts = environment_facts(spec(trainer__engine={"kind": "torch", "ranks": 3}))
    libraries = {"numpy", "python", "tokenizers", "torch", "transformers"}
    assert set(facts) == {"code", "layout", "instructions", "threads"} | libraries
    assert "pillow" in environment_facts(load_spec(ROOT / "tests" / "specs" / "pictures.yaml"))
    assert facts["layout"] == "torch x 3"
    assert facts["numpy"] == np.__version__
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == str(torch.get_num_threads())
    assert facts["code"] == code_revision()
    assert all(type(value) is str and value for value in facts.values()), (
        "who reads a class of torch's must import torch"
    )


FOLDER = {"kind": "folder", "path": "judge-model"}
REWARD_MODEL = {"kind": "reward_model", "name": "judge", "model": FOLDER, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("changes", "roles"),
    [
        ({}, []),
        ({"trainer__engine": {"kind": "torch", "ranks": 1, "dtype": "bfloat16"}, "exact": False}, ["trainer.engine"]),
        ({"trainer__engine": {"kind": "fsdp2", "ranks": 1}, "exact": False}, ["trainer.engine"]),
        ({"rollout__engine": {"kind": "torch", "dtype": "bfloat16"}, "exact": False}, ["rollout.engine"]),
        ({"rollout__engine": {"kind": "vllm", "dtype": "bfloat16"}, "exact": False}, []),
        (
            {"rewards__parts": [{"name": "right", "function": "exact_match"}, REWARD_MODEL], "exact": False},
            ["rewards.parts 'judge'"],
        ),
        (VIRTUAL, []),
    ],
)
def test_a_run_that_multiplies_bfloat16_records_how(changes, roles):
    tree = spec(**changes)
    assert bfloat16_roles(tree) == roles
    facts = environment_facts(tree)
    if roles and not torch.cuda.is_available():
        assert facts["bfloat16 products"] == way_of_processor()
    else:
        assert "bfloat16 products" not in facts


def test_ranks_that_differ_are_recorded_with_their_numbers():
    native, widened = ({"torch": "2.13.0", "bfloat16 products": way} for way in ("native", "widened"))
    assert facts_of_ranks([native, native]) == native
    assert mixed_facts([native, native]) == {}
    mixed = {"bfloat16 products": "native (rank 0), widened (rank 1)"}
    assert facts_of_ranks([native, widened]) == {"torch": "2.13.0", **mixed}
    assert mixed_facts([native, widened]) == mixed
    many = [native, native, widened, native, widened, widened, widened]
    assert mixed_facts(many) == {"bfloat16 products": "native (ranks 0 to 1, 3), widened (ranks 2, 4 to 6)"}


def test_a_fact_that_only_some_ranks_know_is_taken_from_them():
    assert facts_of_ranks([{"numpy": "2"}, {"numpy": "2", "vllm": "0.33"}]) == {"numpy": "2", "vllm": "0.33"}
    assert mixed_facts([{"numpy": "2"}, {"numpy": "2", "vllm": "0.33"}]) == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is declared of processors")
@pytest.mark.parametrize(
    ("dtype", "bits"), [("float32", "batch-invariant kernels"), ("bfloat16", "fixed decode batches")]
)
def test_what_makes_torchs_responses_repeat_is_recorded(tmp_path, dtype, bits):
    made = spec(rollout__engine={"kind": "torch", "instances": 2, "dtype": dtype})
    assert made.is_exact
    build_model(tmp_path / "model", "tied")
    declared = build_rollout_engine(made, str(tmp_path / "model"), tmp_path).capabilities
    assert rollout_facts(made, [declared] * 2) == {"rollout bits": bits}


def test_what_makes_responses_repeat_is_said_of_each_kind_of_engine_and_of_no_others():
    continuous = spec(
        rollout__engine={"kind": "torch", "dtype": "bfloat16", "continuous": True, "max_num_seqs": 8}, exact="auto"
    )
    assert rollout_facts(continuous, [{"batch_invariant": False}]) == {"rollout bits": "not exact"}
    mixed = [{"batch_invariant": True}, {"batch_invariant": False}]
    assert rollout_facts(spec(), mixed) == {"rollout bits": "batch-invariant kernels, fixed decode batches"}
    assert rollout_facts(spec(**VIRTUAL), [{"batch_invariant": True}]) == rollout_facts(spec(), []) == {}


def test_a_virtual_run_needs_no_torch():
    facts = environment_facts(spec(**VIRTUAL))
    assert set(facts) == {"code", "python", "numpy", "layout"}
    program = (
        "import sys; from tests.spec.trees import VIRTUAL, spec; from yatt_core.engines.environment import environment_facts; "
        "environment_facts(spec(**VIRTUAL)); print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stdout.strip() == "False"


def test_settings_that_change_no_bits_are_left_out():
    """Rollout, controllers and deadlines are part of the spec's digest; a replay of `learn` does not depend on them."""
    assert environment_facts(spec()) == environment_facts(
        spec(controllers__count=4, rollout__engine={"kind": "torch", "instances": 1}, recovery__lease_seconds=3.0)
    )


def revision_of(monkeypatch, folder) -> str:
    monkeypatch.setattr(revision, "__file__", str(folder / "code_revision.py"))
    return code_revision.__wrapped__()


def test_the_revision_depends_only_on_the_sources(tmp_path, monkeypatch):
    one = tmp_path / "one"
    two = tmp_path / "two"
    for folder in (one, two):
        (folder / "sub").mkdir(parents=True)
        (folder / "environment.py").write_text("a = 1\n")
        (folder / "sub" / "b.py").write_text("b = 1\n")
    first = revision_of(monkeypatch, one)
    content = b"environment.py\0a = 1\nsub/b.py\0b = 1\n"
    assert first == hashlib.sha256(content).hexdigest()[:16]
    assert revision_of(monkeypatch, two) == first
    (two / "sub" / "b.pyc").write_bytes(b"compiled")
    assert revision_of(monkeypatch, two) == first
    (two / "sub" / "b.py").write_text("b = 2\n")
    assert revision_of(monkeypatch, two) != first
    (one / "sub" / "b.py").rename(one / "sub" / "c.py")
    assert revision_of(monkeypatch, one) != first


def test_the_revision_is_that_of_the_package():
    assert len(code_revision()) == 16
    assert environment.__file__.startswith(str(yatt_core.__path__[0]))
