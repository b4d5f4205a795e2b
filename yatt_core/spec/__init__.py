"""The run's configuration: frozen pydantic models, read from YAML and described by a JSON Schema."""

from yatt_core.spec.reading.load import load_spec, override_spec, parse_spec, spec_of_tree
from yatt_core.spec.run import RunSpec
from yatt_core.spec.schema import json_schema

__all__ = ["RunSpec", "json_schema", "load_spec", "override_spec", "parse_spec", "spec_of_tree"]
