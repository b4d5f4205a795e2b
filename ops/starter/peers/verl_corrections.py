"""verl's corrections for the difference between what samples and what trains, also by the keys of older versions.

Consumes a draft with verl's keys. Writes into the draft. Raises `ConfigurationError`.
"""

from __future__ import annotations

from ops.starter.peers.draft import Draft

CAP = "actor_rollout_ref.actor.tis_imp_ratio_cap"
OLDER = {
    name: f"algorithm.rollout_{name}"
    for name in ("is", "is_threshold", "is_threshold_lower", "is_level", "is_mode", "is_veto_threshold")
}
"""The keys of verl 0.6 for corrections."""
LEVELS = {"token": "token", "sequence": "sequence", "geometric": "sequence_mean"}


def write_correction(draft: Draft) -> None:
    """Writes the section `algorithm.importance_correction`."""
    key = "algorithm.rollout_correction.rollout_is"
    bound = "algorithm.rollout_correction.rollout_is_threshold"
    older = _older_correction(draft)
    level = draft[key]
    if older and level is not None:
        draft.refuse(key, "beside a correction by keys of older versions; keep one of them")
    if level is None:
        for unused in (key, bound):
            draft.takes(unused, {}, "no correction")
        return
    if level not in ("token", "sequence"):
        draft.refuse(key, "expected token, sequence or null")
    draft.takes(key, {"algorithm.importance_correction.by": level})
    limits = str(draft[bound]).split("_")
    if len(limits) == 2:
        low, high = (float(one) for one in limits)
        kind = {"kind": "mask", "low": low, "high": high}
    else:
        kind = {"kind": "truncate", "cap": float(limits[0])}
    draft.takes(bound, {f"algorithm.importance_correction.{name}": value for name, value in kind.items()})


def _older_correction(draft: Draft) -> bool:
    """Writes the correction by the keys of verl 0.5, a bound of tokens' weights, or of 0.6; returns whether there is one."""
    to = "algorithm.importance_correction"
    key = OLDER["is"]
    capped = draft[CAP] is not None and draft.real(CAP) > 0
    if capped and draft.truth(key):
        draft.refuse(CAP, f"beside {key}; keep one of them")
    draft.takes(CAP, {f"{to}.kind": "truncate", f"{to}.by": "token", f"{to}.cap": draft[CAP]} if capped else {})
    if not draft.truth(key) or draft[OLDER["is_threshold"]] is None:
        for unused in OLDER.values():
            draft.takes(unused, {}, "no correction")
        return capped
    level, mode = (draft[OLDER[name]] for name in ("is_level", "is_mode"))
    level = "token" if level is None else level
    if level not in LEVELS:
        draft.refuse(OLDER["is_level"], f"expected one of {', '.join(LEVELS)}")
    if mode not in (None, "truncate", "mask"):
        draft.refuse(OLDER["is_mode"], "expected truncate or mask")
    if draft[OLDER["is_veto_threshold"]]:
        draft.refuse(OLDER["is_veto_threshold"], "YATT leaves out no response for one of its tokens; expected null")
    draft.takes(OLDER["is_veto_threshold"], {}, "off, as in YATT")
    draft.takes(key, {f"{to}.by": LEVELS[level]})
    draft.takes(OLDER["is_level"], {f"{to}.by": LEVELS[level]})
    _older_bounds(draft, to, mode == "mask")
    return True


def _older_bounds(draft: Draft, to: str, masks: bool) -> None:
    mode, upper, lower = (OLDER[name] for name in ("is_mode", "is_threshold", "is_threshold_lower"))
    high = draft.real(upper)
    if not masks:
        draft.write(f"{to}.kind", "truncate")
        draft.takes(mode, {f"{to}.kind": "truncate"})
        draft.takes(upper, {f"{to}.cap": high})
        draft.takes(lower, {}, "a truncated weight has an upper bound alone")
        return
    low = 1 / high if draft[lower] is None else draft.real(lower)
    why = "what is masked leaves the number of tokens that the loss is divided by in verl, and counts in it here"
    draft.differs(mode, why, {f"{to}.kind": "mask"})
    draft.takes(upper, {f"{to}.low": low, f"{to}.high": high})
    draft.takes(lower, {f"{to}.low": low})
