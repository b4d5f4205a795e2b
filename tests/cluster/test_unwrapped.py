"""What an actor's failed import means: a package that nobody has is no transient fault, one that only a node lacks may be."""

from __future__ import annotations

import pytest
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from yatt_core.cluster.metering import unwrap_ray_error
from yatt_core.errors import ConfigurationError, InfrastructureError


def failed(line: str) -> tuple[RayTaskError, ActorDiedError]:
    """Returns what Ray raises for a method, and for a constructor, that has imported a module of this name in vain."""
    cause = ModuleNotFoundError(f"No module named '{line}'")
    task = RayTaskError("load", f"Traceback\n  in load\nModuleNotFoundError: {cause}", cause)
    return task, ActorDiedError(task)


@pytest.mark.parametrize("name", ["no_such_package", "no_such_package.inside"])
def test_a_package_that_is_nowhere_ends_the_session_with_its_name(name: str) -> None:
    for error in failed(name):
        found = unwrap_ray_error(error, "rollout-0")
        assert isinstance(found, ConfigurationError)
        assert str(found).startswith("rollout-0: needs the package no_such_package, which is not installed")


def test_what_only_the_actors_node_lacks_is_tried_again() -> None:
    of_method, of_constructor = failed("yatt_core")
    assert unwrap_ray_error(of_method, "rollout-0") is of_method
    assert isinstance(unwrap_ray_error(of_constructor, "rollout-0"), InfrastructureError)


def test_what_only_reads_like_it_is_not_taken_for_it() -> None:
    told: RayError = RayTaskError("load", "Traceback\nValueError: x", ValueError("No module named 'no_such_package'"))
    assert unwrap_ray_error(told, "rollout-0") is told
