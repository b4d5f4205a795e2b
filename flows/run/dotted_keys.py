"""Flattens trees of plain values to dotted keys, such as a spec's for the tracker."""

from __future__ import annotations

import json


def flatten(node: object, prefix: str = "") -> dict[str, str]:
    """Flattens a tree of plain values to dotted keys; leaves become text, lists of leaves become JSON."""
    if isinstance(node, dict) and node:
        return {k: v for key, value in node.items() for k, v in flatten(value, f"{prefix}{key}.").items()}
    if isinstance(node, list) and node and isinstance(node[0], dict):
        return {k: v for i, value in enumerate(node) for k, v in flatten(value, f"{prefix}{i}.").items()}
    return {prefix[:-1]: json.dumps(node) if isinstance(node, list | dict) else str(node)}
