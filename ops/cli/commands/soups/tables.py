"""A soup as tables: its runs, its merged models by preference, and its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ops.presentation.output import write, write_table
from ops.presentation.soup_words import SOUP_NAMES, preference_text

if TYPE_CHECKING:
    from flows.soups.outcome import SoupFigures
    from ops.queries.soups import SoupView


def print_soup(view: SoupView) -> None:
    """Writes a soup."""
    chosen = "not chosen yet" if view.beta is None else f"{view.beta:g}"
    write(f"{view.soup}: {', '.join(view.objectives)}; beta {chosen}")
    rows = [
        (
            each.run,
            "supervised" if each.beta is None else f"{each.beta:g}",
            each.objective or "",
            each.iteration,
            each.state,
        )
        for each in view.members
    ]
    write_table(("run", "beta", "objective", "iteration", "state"), rows)
    if view.hypervolumes:
        candidates = ", ".join(f"{beta}: {volume:.5g}" for beta, volume in view.hypervolumes.items())
        write(f"hypervolume of each beta after iteration {view.search_at}: {candidates}")
    for soup in view.soups:
        _print_models(view, soup)
    for soup in view.soups:
        taus = ", ".join(f"{name} {tau:.3f}" for name, tau in zip(view.objectives, soup.kendall_tau, strict=True))
        write(
            f"{SOUP_NAMES[soup.stage]}: hypervolume {soup.hypervolume:.5g}, Kendall's tau {soup.mean_tau:.3f} ({taus})"
        )
    if view.hypervolume_ratio is not None:
        write(f"hypervolume, Bone Soup / Rewarded Soup: {view.hypervolume_ratio:.4f}")
    for merged in view.merged:
        write(f"{merged['run']}: merged for {preference_text(merged['preference'])}")
    if view.following:
        write(f"next: {view.following}; `yatt soup resume {view.soup}` goes on")


def _print_models(view: SoupView, soup: SoupFigures) -> None:
    columns = ("preference", "coefficients", *view.objectives, "on the front")
    rows = [
        (
            preference_text(model.preference),
            " ".join(f"{coefficient:+.3f}" for coefficient in model.coefficients),
            *model.rewards,
            "yes" if model.on_front else "",
        )
        for model in soup.models
    ]
    write_table(columns, rows, SOUP_NAMES[soup.stage])
