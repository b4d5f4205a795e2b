"""Published settings of `algorithm` by name: what a spec with `algorithm: {preset: NAME}` starts from.

A spec's own keys are laid over those of the preset. The preset itself is not part of the spec: one that names it and one that
writes all of its keys have the same digest.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from yatt_core.errors import ConfigurationError

PRESET = "preset"
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "dapo": {
        # arXiv 2503.14476: 16 steps on 512 prompts; a buffer of 4096 of 20480 tokens, which is the default's fifth
        "advantage": {"kind": "group_std"},
        "loss": {"kind": "clip", "clip_low": 0.2, "clip_high": 0.28},
        "aggregation": "token_mean",
        "mini_batches": 16,
        "length_penalty": {"kind": "overlong", "penalty": 1.0},
    },
    "dr_grpo": {
        # arXiv 2503.20783
        "advantage": {"kind": "group_mean"},
        "loss": {"kind": "clip", "clip_low": 0.2, "clip_high": 0.2},
        "aggregation": "fixed_length",
    },
    "gspo": {
        # arXiv 2507.18071, section 5.1
        "advantage": {"kind": "group_std"},
        "loss": {"kind": "gspo", "clip_low": 3e-4, "clip_high": 4e-4},
        "aggregation": "sequence_mean",
        "mini_batches": 4,
    },
    "cispo": {
        # arXiv 2506.13585; the paper does not state the bound, 5 is that of arXiv 2510.13786
        "advantage": {"kind": "group_std"},
        "loss": {"kind": "cispo", "clip_low": 1.0, "clip_high": 4.0},
        "aggregation": "token_mean",
        "mini_batches": 16,
    },
    "rloo": {
        # arXiv 2402.14740: one step, so that nothing is clipped; the loss sums over a response's tokens
        "advantage": {"kind": "leave_one_out"},
        "aggregation": "fixed_length",
        "kl": {"coefficient": 0.03, "where": "reward", "estimator": "k1"},
    },
    "reinforce_plus_plus": {
        # arXiv 2501.03262
        "advantage": {"kind": "reinforce_plus_plus", "baseline": False},
        "loss": {"kind": "clip", "clip_low": 0.2, "clip_high": 0.2},
        "aggregation": "token_mean",
        "kl": {"coefficient": 0.01, "where": "reward", "estimator": "k1"},
    },
    "ppo": {
        # arXiv 2203.02155, appendix C.4
        "advantage": {"kind": "gae", "gamma": 1.0, "gae_lambda": 0.95, "normalise": "batch_std"},
        "critic": {"clip": 0.2},
        "loss": {"kind": "clip", "clip_low": 0.2, "clip_high": 0.2},
        "aggregation": "token_mean",
        "mini_batches": 8,
        "kl": {"coefficient": 0.02, "where": "reward", "estimator": "k1"},
    },
    "dppo": {
        # arXiv 2602.04879, binary total variation; advantages as in arXiv 2503.20783 are our choice
        "advantage": {"kind": "group_mean"},
        "loss": {"kind": "dppo", "divergence": "tv", "delta": 0.15},
        "aggregation": "token_mean",
    },
}


def preset_tree(name: Any) -> Mapping[str, Any]:
    """Returns the keys of a preset. Raises `ConfigurationError` for an unknown name."""
    if isinstance(name, str) and name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(str(name), PRESETS, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigurationError(f"unknown preset {name!r}; {meant}known presets: {', '.join(PRESETS)}")
