"""Settings and telemetry as plain JSON values, so that the inputs of a decision can be stored and used again.

Numbers are restored bit for bit, so that a policy given its recorded inputs repeats its recorded decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from pydantic import ValidationError

from yatt_core.errors import DataError
from yatt_core.installed import failure_text
from yatt_core.placement.seen import IterationTelemetry, Setting, SwitchTime, Usage
from yatt_core.placement.work import SampleWork, WaveWork
from yatt_core.placement.workload import EngineConstants, SwitchCosts
from yatt_core.spec.base import SpecModel

_MODELS: dict[str, type[SpecModel]] = {"rollout": EngineConstants, "judge": EngineConstants, "switch": SwitchCosts}


_OF_LENT = ("lent", "lent_after_s")
"""Fields that are left out where no instance is lent."""
_OF_ANOTHER = "the recorded setting of the placement is not one of this version; another may have recorded it"


def setting_to_json(setting: Setting) -> dict[str, Any]:
    """Returns a setting's fields as JSON values."""
    left_out = () if setting.lent else _OF_LENT
    values = {field.name: getattr(setting, field.name) for field in fields(setting) if field.name not in left_out}
    return {
        name: value.model_dump(mode="json") if name in _MODELS else list(value) if name == "speeds" else value
        for name, value in values.items()
    }


def setting_from_json(values: Mapping[str, Any]) -> Setting:
    """Restores a setting from its JSON values. Raises `DataError` if they are not those of this version's settings."""
    try:
        models: dict[str, Any] = {name: kind.model_validate(values[name]) for name, kind in _MODELS.items()}
        return Setting(**{**values, **models, "speeds": tuple(values["speeds"])})
    except ValidationError as error:
        wrong = (f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise DataError(f"{_OF_ANOTHER}: {'; '.join(wrong)}") from error
    except (KeyError, TypeError) as error:
        raise DataError(f"{_OF_ANOTHER}: {failure_text(error)}") from error


def telemetry_to_json(telemetry: IterationTelemetry) -> dict[str, Any]:
    """Returns an iteration's work, column by column, with its usage and seconds."""
    return {
        "roles": telemetry.roles,
        "waves": [_wave_to_json(wave) for wave in telemetry.waves],
        "usage": [asdict(usage) for usage in telemetry.usage],
        "collect_s": telemetry.collect_s,
        "judging_s": telemetry.judging_s,
        "switches": [asdict(switch) for switch in telemetry.switches],
    }


def telemetry_from_json(values: Mapping[str, Any]) -> IterationTelemetry:
    """Restores telemetry from its JSON values. Raises `DataError` if they are not those of this version's telemetry."""
    try:
        return IterationTelemetry(
            roles=values["roles"],
            waves=tuple(_wave_from_json(wave) for wave in values["waves"]),
            usage=tuple(Usage(**usage) for usage in values["usage"]),
            collect_s=values["collect_s"],
            judging_s=values["judging_s"],
            switches=tuple(SwitchTime(**switch) for switch in values["switches"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"the recorded work of an iteration is not one of this version; another may have recorded it: "
            f"{failure_text(error)}"
        ) from error


def _wave_to_json(wave: WaveWork) -> dict[str, Any]:
    columns = {field.name: [getattr(sample, field.name) for sample in wave.samples] for field in fields(SampleWork)}
    return {"valid": list(wave.valid), "samples": columns}


def _wave_from_json(values: Mapping[str, Any]) -> WaveWork:
    names = list(values["samples"])
    rows = zip(*(values["samples"][name] for name in names), strict=True)
    samples: list[dict[str, Any]] = [
        {name: tuple(value) if isinstance(value, list) else value for name, value in zip(names, row, strict=True)}
        for row in rows
    ]
    return WaveWork(tuple(SampleWork(**sample) for sample in samples), tuple(values["valid"]))
