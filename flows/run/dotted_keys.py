"""Flattens trees of plain values to dotted keys: how specs are compared, and how they are sent to the tracker."""

from __future__ import annotations

import json


def dotted_leaves(node: object, prefix: str = "") -> dict[str, object]:
    """Flattens a tree to its leaves by dotted key; a list of plain values is a leaf."""
    if isinstance(node, dict) and node:
        return {k: v for key, value in node.items() for k, v in dotted_leaves(value, f"{prefix}{key}.").items()}
    if isinstance(node, list) and node and isinstance(node[0], dict):
        return {k: v for i, value in enumerate(node) for k, v in dotted_leaves(value, f"{prefix}{i}.").items()}
    return {prefix[:-1]: node}


def dotted_text(node: object) -> dict[str, str]:
    """Flattens a tree to dotted keys with text for values; lists and empty mappings become JSON."""
    leaves = dotted_leaves(node).items()
    return {key: json.dumps(leaf) if isinstance(leaf, list | dict) else str(leaf) for key, leaf in leaves}
