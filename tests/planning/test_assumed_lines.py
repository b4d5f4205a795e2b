"""A plan lists the assumptions it used, and no others."""

from __future__ import annotations

from tests.planning.examples import SHORT, cluster, judged, spec_7b
from tests.planning.test_fitted import batches, iterations
from yatt_core.planning.assumed_lines import assumed_lines
from yatt_core.planning.roles import roles_of
from yatt_core.planning.time.fitted import FittedConstants, fit

SHARES = ("training at 35%", "prefill at 50%, decoding at 75%", "sequence adds 50%")
TORCH = ("rollout.engine={kind: torch}", "trainer.engine={kind: torch, micro_batch_tokens: 16384}")
VIRTUAL = ("rollout.engine={kind: virtual}", "trainer.engine={kind: virtual}")


def assumed_text(*overrides: str, fitted: FittedConstants | None = None) -> str:
    roles = roles_of(spec_7b(*overrides), SHORT)
    return "\n".join(assumed_lines(roles, cluster("8xH200"), SHORT, fitted))


def contained(text: str, *words: str) -> list[bool]:
    return [word in text for word in words]


def test_assumptions_about_sleeping_engines():
    text = assumed_text("rollout.engine.tensor_parallel_size=2", judged())
    assert all(
        contained(text, *SHARES, "an all-reduce takes 6 microseconds", "an optimizer step takes 1 s", "wakes in 2 s")
    )
    assert all(contained(text, "logarithms is 0.5", "judgements of 200:0.3 tokens", "24 hours between"))
    assert not any(contained(text, "torch", "tool"))
    assert "all-reduce" not in assumed_text(), "one device needs no all-reduce"


def test_assumptions_about_torch_engines():
    text = assumed_text(*TORCH)
    assert all(contained(text, *SHARES, "0.4 ms per layer", "torch engines takes 0.75 GiB"))
    assert not any(contained(text, "sleep", "optimizer step", "judgements"))


def test_virtual_engines_use_no_share_of_a_card():
    text = assumed_text(*VIRTUAL)
    assert not any(contained(text, *SHARES, "GiB", "vocabulary"))
    assert "responses of 300:0.6" in text


def test_assumptions_about_weight_sync():
    assert "a weight sync sends 14.2 GiB at 450 GB/s to a device; digests" in assumed_text()
    assert "to a device, as if all weights had changed;" in assumed_text(
        "rollout.engine={kind: torch}", "trainer.sync=delta"
    )
    adapters = ("trainer.engine={kind: fsdp2}", "trainer.lora={rank: 16, sync: adapter}")
    assert "sends 0.15 GiB at 450 GB/s to a device;" in assumed_text(*adapters)
    assert "weight sync" not in assumed_text(fitted=fit("run-1", [], iterations([1e4, 2e4, 4e4], 2.0, 1e-4), ranks=2))


def test_assumptions_about_tools():
    tools = "rollout.tools={max_turns: 3, functions: [{name: add, function: calculator, description: adds}]}"
    assert "tool call takes 1 s" in assumed_text(tools)


def test_measured_values_are_not_assumed():
    training = fit("run-1", [], iterations([1e4, 2e4, 4e4], 2.0, 1e-4), ranks=2)
    engines = fit("run-1", batches(40), [], ranks=2)
    assert contained(assumed_text(fitted=training), *SHARES) == [False, True, True]
    assert contained(assumed_text(fitted=engines), *SHARES) == [True, False, False]
    assert all(contained(assumed_text(judged(), fitted=engines), *SHARES)), "the judge's engine still uses the card"
