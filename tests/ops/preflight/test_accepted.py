"""What only this version refuses is a warning for the new runs of a deployment, and an error for people."""

from __future__ import annotations

import pytest

from flows.run.home import Home
from ops.preflight.new_runs import refused_since
from ops.preflight.run import check_before_start
from tests.ops.seeding import toy_spec
from yatt_core.errors import ConfigurationError
from yatt_core.spec import override_spec


def test_a_model_that_earlier_versions_made_is_refused_to_people_and_said_to_windows(home: Home) -> None:
    spec = override_spec(toy_spec(), ["model.architecture=qwen2"], "toy")
    with pytest.raises(ConfigurationError, match="expected qwen3 or llama"):
        check_before_start(home.folder, spec)
    (refused,) = refused_since(spec)
    assert refused in check_before_start(home.folder, spec, accepted=True).warnings
    assert refused_since(override_spec(spec, ["model.architecture=llama"], "toy")) == []
