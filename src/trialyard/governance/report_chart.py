"""Line charts as SVG, drawn by hand: no script, no network, colours from the page's CSS.

A chart is a pure function of its data. Colours are CSS variables (``--c1`` ...), so the
same drawing serves light and dark.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from trialyard.governance.report_text import escaped, percent, percent_range

Point = tuple[float, float]
_CHAR = 6.3
"""Average width of a character of the legend, in pixels."""


@dataclass(frozen=True, slots=True)
class Line:
    """A series joined by a line; with `smooth` its running mean is drawn over a faint one."""

    name: str
    points: Sequence[Point]
    colour: str
    smooth: int = 0
    width: float = 1.8


@dataclass(frozen=True, slots=True)
class Mark:
    """One measured point with its interval."""

    x: float
    y: float
    interval: tuple[float, float] | None
    title: str


@dataclass(frozen=True, slots=True)
class Marks:
    """A series of measured points, joined by a dashed line."""

    name: str
    marks: Sequence[Mark]
    colour: str
    shape: str = "circle"


@dataclass(frozen=True, slots=True)
class Band:
    """A named stretch of the x axis."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Chart:
    """What to draw, and how large."""

    title: str
    x_label: str
    lines: Sequence[Line] = ()
    marks: Sequence[Marks] = ()
    bands: Sequence[Band] = ()
    width: int = 360
    height: int = 220
    as_percent: bool = False
    y_range: tuple[float, float] | None = None
    css: str = ""
    """A style sheet inside the drawing, for one that stands alone."""
    _left: int = field(default=46, init=False)


def draw(chart: Chart) -> str:
    """The chart as an ``<svg>`` element."""
    frame = _Frame.of(chart)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" '
        f'viewBox="0 0 {chart.width} {chart.height}" width="{chart.width}" '
        f'height="{chart.height}"><title>{escaped(chart.title)}</title>',
        f"<style>{chart.css}</style>" if chart.css else "",
        '<rect class="ground" width="100%" height="100%"/>' if chart.css else "",
        *_bands(chart, frame),
        *_axes(chart, frame),
        *(part for line in chart.lines for part in _line(line, frame)),
        *(part for marks in chart.marks for part in _marks(marks, frame)),
        *_legend(chart, frame)[0],
        "</svg>",
    ]
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The plotting area in pixels and the data range that it shows."""

    left: float
    right: float
    top: float
    bottom: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    @classmethod
    def of(cls, chart: Chart) -> "_Frame":
        xs = [x for line in chart.lines for x, _ in line.points]
        xs += [mark.x for marks in chart.marks for mark in marks.marks]
        xs += [edge for band in chart.bands for edge in (band.start, band.end)]
        ys = [y for line in chart.lines for _, y in line.points]
        y_range = chart.y_range or _padded(min(ys, default=0.0), max(ys, default=1.0))
        x_range = (min(0.0, *xs) if xs else 0.0, max(xs, default=1.0))
        if x_range[0] == x_range[1]:
            x_range = (x_range[0], x_range[0] + 1)
        legend_height = _legend_rows(chart) * 18
        return cls(
            chart._left, chart.width - 14, 12 + legend_height, chart.height - 36, x_range, y_range
        )

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self.y_range
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return self.bottom - share * (self.bottom - self.top)


def _padded(low: float, high: float) -> tuple[float, float]:
    low, high = min(0.0, low), max(0.0, high)
    if high == low:
        return low, low + 1.0
    margin = 0.06 * (high - low)
    return (low - margin if low < 0 else 0.0), high + margin


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """About `wanted` round numbers within a range."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, wanted)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def tick_name(value: float, values: Sequence[float]) -> str:
    """A tick's number with as many decimals as its axis needs."""
    size = values[1] - values[0] if len(values) > 1 else 1.0
    decimals = max(0, -math.floor(math.log10(size) + 1e-9))
    return f"{value:,.{decimals}f}".replace("-", "−")


def _axes(chart: Chart, frame: _Frame) -> list[str]:
    parts = []
    y_ticks = ticks(*frame.y_range, min(6, max(3, int((frame.bottom - frame.top) // 36))))
    for value in y_ticks:
        y = frame.y(value)
        name = percent(value, digits=0) if chart.as_percent else tick_name(value, y_ticks)
        parts.append(
            f'<line class="grid" x1="{frame.left}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{frame.left - 6}" y="{y + 4:.1f}" text-anchor="end">{name}'
            "</text>"
        )
    x_ticks = ticks(*frame.x_range, max(4, int((frame.right - frame.left) // 90)))
    for value in x_ticks:
        parts.append(
            f'<text class="tick" x="{frame.x(value):.1f}" y="{frame.bottom + 16:.1f}" '
            f'text-anchor="middle">{tick_name(value, x_ticks)}</text>'
        )
    middle = (frame.left + frame.right) / 2
    parts.append(
        f'<line class="axis" x1="{frame.left}" x2="{frame.right}" y1="{frame.bottom}" '
        f'y2="{frame.bottom}"/><text class="label" x="{middle:.0f}" y="{chart.height - 5}" '
        f'text-anchor="middle">{escaped(chart.x_label)}</text>'
    )
    return parts


def _bands(chart: Chart, frame: _Frame) -> list[str]:
    parts = []
    for index, band in enumerate(chart.bands):
        x, width = frame.x(band.start), frame.x(band.end) - frame.x(band.start)
        parts.append(
            f'<rect class="band band{index % 2}" x="{x:.1f}" y="{frame.top}" '
            f'width="{max(0.0, width):.1f}" height="{frame.bottom - frame.top:.1f}"/>'
        )
        if width > _CHAR * len(band.name) + 8:
            parts.append(
                f'<text class="band-name" x="{x + width / 2:.1f}" y="{frame.top + 14}" '
                f'text-anchor="middle">{escaped(band.name)}</text>'
            )
    return parts


def _line(line: Line, frame: _Frame) -> list[str]:
    if not line.points:
        return []
    style = f'style="stroke:var(--{line.colour});stroke-width:{line.width}"'
    if len(line.points) == 1:
        x, y = line.points[0]
        return [_symbol("circle", frame.x(x), frame.y(y), line.colour)]
    if line.smooth < 2:
        return [f'<path class="line" {style} d="{_path(line.points, frame)}"/>']
    mean = running_mean(line.points, line.smooth)
    return [
        f'<path class="line faint" {style} d="{_path(line.points, frame)}"/>',
        f'<path class="line" {style} d="{_path(mean, frame)}"/>',
    ]


def running_mean(series: Sequence[Point], window: int) -> list[Point]:
    """Mean of the last `window` values at each point."""
    found = []
    for end in range(1, len(series) + 1):
        part = [y for _, y in series[max(0, end - window) : end]]
        found.append((series[end - 1][0], sum(part) / len(part)))
    return found


def _path(series: Sequence[Point], frame: _Frame) -> str:
    return "M" + "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in series)


def _marks(marks: Marks, frame: _Frame) -> list[str]:
    parts = []
    if len(marks.marks) > 1:
        path = _path([(mark.x, mark.y) for mark in marks.marks], frame)
        parts.append(f'<path class="line dashed" style="stroke:var(--{marks.colour})" d="{path}"/>')
    for mark in marks.marks:
        x, y = frame.x(mark.x), frame.y(mark.y)
        bar = ""
        if mark.interval is not None:
            low, high = frame.y(mark.interval[0]), frame.y(mark.interval[1])
            bar = (
                f'<path class="bar" style="stroke:var(--{marks.colour})" d="M{x:.1f} {low:.1f}V'
                f"{high:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"
                '"/>'
            )
        text = f"{mark.title}: {percent(mark.y)} ({percent_range(mark.interval)})"
        symbol = _symbol(marks.shape, x, y, marks.colour)
        parts.append(f"<g><title>{escaped(text)}</title>{bar}{symbol}</g>")
    return parts


def _symbol(shape: str, x: float, y: float, colour: str) -> str:
    style = f'class="mark" style="fill:var(--{colour})"'
    if shape == "square":
        return f'<rect {style} x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9" rx="1"/>'
    return f'<circle {style} cx="{x:.1f}" cy="{y:.1f}" r="5"/>'


def _legend_items(chart: Chart) -> list[tuple[str, str, str]]:
    """(name, colour, shape) of each series."""
    lines = [(line.name, line.colour, "line") for line in chart.lines if line.name]
    return [*((marks.name, marks.colour, marks.shape) for marks in chart.marks), *lines]


def _legend_rows(chart: Chart) -> int:
    return _legend(chart, None)[1]


def _legend(chart: Chart, frame: _Frame | None) -> tuple[list[str], int]:
    """Legend above the plot, wrapped; and its number of rows."""
    items = _legend_items(chart)
    if not items:
        return [], 0
    parts, x, row = [], float(chart._left), 0
    for name, colour, shape in items:
        width = 26 + _CHAR * len(name)
        if x > chart._left and x + width > chart.width - 8:
            x, row = float(chart._left), row + 1
        y = 14 + 18 * row
        symbol = (
            f'<path class="line" style="stroke:var(--{colour});stroke-width:2.5" '
            f'd="M{x:.1f} {y - 4}h14"/>'
            if shape == "line"
            else _symbol(shape, x + 7, y - 4, colour)
        )
        parts.append(
            f'{symbol}<text class="legend" x="{x + 20:.1f}" y="{y}">{escaped(name)}</text>'
        )
        x += width + 12
    return parts, row + 1
