"""Curves as characters: sparklines, and several curves over the same axes."""

from __future__ import annotations

from ops.presentation.curves import plot, sparkline


def test_a_sparkline_has_a_block_per_value_from_the_lowest_to_the_highest() -> None:
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, None, 0.0, None]) == "█ ▁"
    assert sparkline([2.0, 2.0]) == "▅▅"
    assert sparkline([None]) == sparkline([]) == ""


def test_a_plot_has_a_mark_per_curve_and_fits_its_width() -> None:
    rising = [(float(x), x / 10) for x in range(11)]
    falling = [(float(x), 1 - x / 10) for x in range(11)]
    lines = plot({"a-1": rising, "b-1": falling, "empty-1": []}, width=60, height=11)
    assert max(map(len, lines)) <= 60 and len(lines) == 11 + 3
    assert lines[0].lstrip().startswith("1 ┤▲") and lines[0].endswith("●")
    assert lines[10].lstrip().startswith("0 ┤●") and lines[10].endswith("▲")
    assert lines[5].count("▒") == 1, "where they meet"
    assert lines[12].split() == ["0", "10"]
    assert "● a-1" in lines[13] and "▲ b-1" in lines[13] and "empty-1" not in lines[13]
    assert plot({"a-1": []}, 60) == []
    assert any("●" in line for line in plot({"a-1": [(3.0, 0.5)]}, 40)), "a single point"
