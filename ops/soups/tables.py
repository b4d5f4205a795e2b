"""A soup as tables: its runs, its merged models by preference, and its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ops.presentation.output import write, write_list
from ops.soups.words import SOUP_NAMES

if TYPE_CHECKING:
    from ops.soups.view import SoupView


def print_soup(view: SoupView) -> None:
    """Writes a soup."""
    from ops.soups.view import MEMBERS, MERGED, model_columns

    chosen = "not chosen yet" if view.beta is None else f"{view.beta:g}"
    write(f"{view.soup}: {', '.join(view.objectives)}; beta {chosen}")
    write_list(MEMBERS, view.members)
    if view.hypervolumes:
        candidates = ", ".join(f"{beta}: {volume:.5g}" for beta, volume in view.hypervolumes.items())
        write(f"hypervolume of each beta after iteration {view.search_at}: {candidates}")
    for soup in view.soups:
        write_list(model_columns(view), soup.models, SOUP_NAMES[soup.stage])
    for soup in view.soups:
        taus = ", ".join(f"{name} {tau:.3f}" for name, tau in zip(view.objectives, soup.kendall_tau, strict=True))
        write(
            f"{SOUP_NAMES[soup.stage]}: hypervolume {soup.hypervolume:.5g}, Kendall's tau {soup.mean_tau:.3f} ({taus})"
        )
    if view.hypervolume_ratio is not None:
        write(f"hypervolume, Bone Soup / Rewarded Soup: {view.hypervolume_ratio:.4f}")
    if view.merged:
        write_list(MERGED, view.merged)
    if view.following:
        write(f"next: {view.following}; `yatt soup resume {view.soup}` goes on")
