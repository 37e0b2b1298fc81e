"""Plots: lines and bars as plain SVG text, no dependency. Pure.

Colours tell apart on a light and a dark page; every line is also named at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 170, 36, 48
COLOURS = ("#2a6fdb", "#d1495b", "#2b8a3e", "#b8860b", "#7b4fb5", "#808080", "#0f8b8d", "#a0522d")


def lines(
    title: str, across: str, up: str, series: Mapping[str, Sequence[tuple[float, float]]]
) -> str:
    """One line for each name; the vertical axis is logarithmic."""
    points = [point for each in series.values() for point in each]
    xs = [x for x, _ in points]
    low = floor(log10(min(y for _, y in points)) * 4) / 4
    high = ceil(log10(max(y for _, y in points)) * 4) / 4

    def place(x: float, y: float) -> tuple[float, float]:
        right = (x - min(xs)) / ((max(xs) - min(xs)) or 1.0)
        over = (log10(y) - low) / ((high - low) or 1.0)
        return (
            LEFT + right * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - over * (HEIGHT - TOP - BOTTOM),
        )

    parts = [_text(WIDTH / 2 - RIGHT / 2, 20, title, "middle", bold=True)]
    for tick in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500):
        if 10**low <= tick <= 10**high:
            _, y = place(min(xs), tick)
            parts.append(_line(LEFT, y, WIDTH - RIGHT, y, "#8884"))
            parts.append(_text(LEFT - 8, y + 4, f"{tick:g}", "end"))
    for x in sorted(set(xs)):
        at, _ = place(x, 10**low)
        parts.append(_text(at, HEIGHT - BOTTOM + 18, f"{x:g}", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, across, "middle"))
    parts.append(_text(LEFT, TOP - 6, up, "start"))
    ends = []
    for (name, values), colour in zip(series.items(), COLOURS, strict=False):
        path = " ".join("{:.1f},{:.1f}".format(*place(*value)) for value in values)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        ends.append((place(*values[-1])[1], name, colour))
    taken = float("-inf")
    for y, name, colour in sorted(ends):
        taken = max(y + 4, taken + 14)
        parts.append(_text(WIDTH - RIGHT + 8, taken, name, "start", colour))
    return _svg(parts)


def bars(title: str, up: str, values: Mapping[str, float]) -> str:
    """One horizontal bar for each name."""
    most = max(values.values())
    left, row = 190, (HEIGHT - TOP - 30) / len(values)
    parts = [_text(WIDTH / 2, 20, title, "middle", bold=True)]
    for number, (name, value) in enumerate(values.items()):
        y = TOP + number * row
        width = value / most * (WIDTH - left - 70)
        parts.append(
            f'<rect x="{left}" y="{y:.1f}" width="{width:.1f}" height="{row * 0.7:.1f}"'
            f' fill="{COLOURS[0]}"/>'
        )
        parts.append(_text(left - 8, y + row * 0.5, name, "end"))
        parts.append(_text(left + width + 6, y + row * 0.5, f"{value:.2f}", "start"))
    parts.append(_text(left, HEIGHT - 8, up, "start"))
    return _svg(parts)


def _svg(parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(
    x: float, y: float, text: str, anchor: str, colour: str = "#222", *, bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>'
        f"{escape(text)}</text>"
    )
