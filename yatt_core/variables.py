"""Changes of this process's environment beside threads with native code.

The C library moves the environment when a variable is added, while another thread may be reading it: Ray's and other native
code does so at any time, and a process that is caught in between ends with a segmentation fault. Variables are therefore set
once, before such threads are started if possible, and never set again to what they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


def set_variables(values: Mapping[str, str]) -> None:
    """Sets environment variables, of which those that have their value already are not touched."""
    for name, value in values.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def default_variables(values: Mapping[str, str]) -> None:
    """Sets the environment variables that have no value yet."""
    set_variables({name: value for name, value in values.items() if name not in os.environ})
