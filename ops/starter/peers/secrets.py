"""Which values of a peer's file may be secrets, and how values are shown without them.

Consumes keys and values. Produces values for people and for JSON. Keeps the values of environment variables that name a secret
out of all that this process says later.
"""

from __future__ import annotations

import re
from typing import Any

from yatt_core.logs import keep_secret, redact

SECRETS = frozenset({"logger.wandb.key", "use_wandb", "hub_token", "push_to_hub_token"})
"""Keys whose value may be a secret although their own version, or what is in them, says otherwise."""
NAMING = re.compile(
    r"(?:.*[^a-z])?(?:token|key|secret|password|passwd|passphrase|credentials?|apikey|auth)", re.IGNORECASE
)
"""Matches the last part of a key that may name a secret."""
ORDINARY = re.compile(
    r"(?:.*_)?(?:"
    r"(?:eos|bos|pad|unk|sep|mask|image|video|audio|label|special|stop)_token"
    r"|(?:prompt|response|answer|input|output|label|image|images|video|videos|audio|messages?|tools|chosen|rejected|thinking|fn"
    r"|metric|data|source|teacher|system|question|text|column|row|extra_info|score|reward)_key)",
    re.IGNORECASE,
)
"""Matches last parts that name a token of text, or a column of rows."""
LEVELS = frozenset({"token", "sequence"})
"""Values that say what something counts in, and are no secrets."""
HIDDEN = "(not shown)"
LEAST = 8
"""Shorter values of environment variables may be ordinary words, and are not searched for elsewhere."""


def may_be_secret(key: str) -> bool:
    """Returns whether the value of a key is not shown."""
    if key in SECRETS or key.startswith("export ") or "env" in re.split(r"[^a-z]+", key.lower()):
        return True  # of an environment, a name is enough
    last = re.split(r"[. ]", key)[-1].lstrip("-")
    return NAMING.fullmatch(last) is not None and ORDINARY.fullmatch(last) is None


def shown(key: str, value: Any) -> Any:
    """Returns a value for people: that of a secret is hidden, and credentials within others are redacted."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and value in LEVELS):
        return value
    return HIDDEN if may_be_secret(key) else without_secrets(value)


def without_secrets(value: Any) -> Any:
    """Returns plain data whose texts have no credentials."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: shown(str(key), one) for key, one in value.items()}
    return [without_secrets(one) for one in value] if isinstance(value, list) else value


def keep_out(name: str, value: str) -> None:
    """Keeps the value of an environment variable out of what this process says, if its name is that of a secret."""
    if len(value) >= LEAST and "$" not in value and NAMING.fullmatch(name) and not ORDINARY.fullmatch(name):
        keep_secret(value)
