"""The reward for JSON that satisfies a schema, an entry point of the group `yatt.rewards`.

A module of its own: validation against a schema may take long, and its library is not needed by other runs.
"""

from __future__ import annotations

import json
from typing import Any, Self

from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from pydantic import Field, model_validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from yatt_core.errors import UnreadableResponseError
from yatt_core.installed import failure_text
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.extraction import ResponseExtraction
from yatt_core.rewards.options import built_in


class JsonSchema(ResponseExtraction):
    """Options of `json_schema`."""

    json_schema: dict[str, Any] = Field(alias="schema")

    @model_validator(mode="after")
    def _valid_schema(self) -> Self:
        try:
            validator_for(self.json_schema).check_schema(self.json_schema)
        except SchemaError as error:
            raise ValueError(f"schema: is not a JSON schema: {error.message} at {error.json_path}") from None
        return self


@built_in(JsonSchema, blames_response=True)
def json_schema(prompt: Prompt, response: str, options: JsonSchema, final: str | None = None) -> float:
    """Returns 1 if the answer is JSON that satisfies the schema, else 0.

    References in the schema to other documents are not followed. Raises `UnreadableResponseError` for JSON that is
    nested too deeply.
    """
    given = options.of_response(response, final)
    if given is None:
        return 0.0
    try:
        value = json.loads(given)
        validator = validator_for(options.json_schema)(options.json_schema, registry=Registry())
        return float(validator.is_valid(value))
    except RecursionError:
        raise UnreadableResponseError("its JSON is nested too deeply") from None
    except ValueError:
        return 0.0
    except Unresolvable as error:
        raise ValueError(f"the schema has a reference that cannot be resolved: {failure_text(error)}") from None
