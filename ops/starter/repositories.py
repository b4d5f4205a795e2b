"""Models and datasets that `yatt init` is given by their paths, or by their names on the Hub.

Consumes a path or a name, and the home folder, which keeps what is fetched: of a model everything but its tensors. Produces
looks at their files, with the section of the spec.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ops.starter.looks import DataLook, ModelLook, look_at_data, look_at_model, look_at_place
from ops.starter.places import DataLocation, with_splits
from yatt_core.hub.settle import Settling, settled_repository, splits_of_dataset
from yatt_core.repository_names import is_repository
from yatt_core.spec.sections.data import HubSource
from yatt_core.spec.sections.model import HubModel


def names_repository(given: Path) -> bool:
    """Returns True if what was given is no path of this machine, but can be the name of a repository."""
    return not given.exists() and not Path(given.parts[0]).is_dir() and is_repository(str(given))


def look_at_given_data(
    given: Path, split: str | None, subset: str | None, objective: str | None, settling: Settling
) -> DataLook:
    """Returns the first rows of a path, or of a dataset of the Hub. Raises as `look_at_data` and `settled` do."""
    if names_repository(given):
        return look_at_place(
            hub_place(repo=str(given), split=split, subset=subset, objective=objective, settling=settling)
        )
    return look_at_data(given, split, subset, objective)


def look_at_given_model(given: Path, settling: Settling) -> ModelLook:
    """Returns what a folder, or a model of the Hub, is. Raises as `look_at_model` and `settled` do."""
    return look_at_hub_model(HubModel(repo=str(given)), settling) if names_repository(given) else look_at_model(given)


def look_at_hub_model(model: HubModel, settling: Settling) -> ModelLook:
    """Returns what a model of the Hub is."""
    known = hub_model(model, settling)
    return look_at_model(Path(known.path), known)


def hub_model(model: HubModel, settling: Settling) -> HubModel:
    """Returns a model with the folder of its small files. Raises as `settled` does."""
    return settled_repository(model, "--model", replace(settling, weights=False))


def hub_place(
    repo: str, split: str | None, subset: str | None, objective: str | None, settling: Settling
) -> DataLocation:
    """Returns the rows of a dataset: those of the training split, held out by the split that is called like it.

    Raises as `settled` does, and `ConfigurationError` if it is not clear which split is for training.
    """
    source = HubSource(repo=repo, subset=subset)
    splits = sorted(name for name, files in splits_of_dataset(source, "--data", settling).items() if files)
    keys = {} if subset is None else {"subset": subset}
    place = with_splits(path=Path(repo), keys=keys, splits=splits, split=split, objective=objective)
    held_out = place.held_out[0][0]["held_out_split"] if place.held_out else None
    source = source.model_copy(update={"split": place.keys["split"], "held_out_split": held_out})
    fetched = settled_repository(source, "--data", settling)
    return replace(place, path=Path(fetched.path), kind="hub", held_out=place.held_out[:1], repository=fetched)
