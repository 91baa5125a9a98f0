"""The learning curve: training and held-out solve rates over wall time, as SVG and PNG."""

from pathlib import Path

from trialyard.governance.report_chart import Band, Chart, Line, Mark, Marks, draw, running_mean
from trialyard.governance.report_data import PHASES, RunData, number
from trialyard.governance.report_style import CHART, COLOURS


def unit_of(run: RunData) -> tuple[float, str]:
    """Seconds in the unit of the time axis, and its name."""
    if run.duration_s > 3 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if run.duration_s > 180 else (1.0, "seconds")


def curve(run: RunData, *, width: int, height: int, alone: bool = False) -> Chart:
    """The main chart; `alone` gives the drawing its own colours."""
    unit_s, unit = unit_of(run)
    window = max(2, len(run.steps) // 25)
    return Chart(
        title=f"Learning curve of {run.name}",
        x_label=f"wall time ({unit})",
        lines=[
            Line("training, solve rate", _over_time(run, "solve_rate", unit_s), "c3", window),
            Line("training, reward", _over_time(run, "reward_mean", unit_s), "c4", window),
        ],
        marks=[
            Marks("held-out, sampled", _held_out(run, "sampled", unit_s), "c1"),
            Marks("held-out, greedy", _held_out(run, "greedy", unit_s), "c2", "square"),
        ],
        bands=[
            Band(PHASES[phase.name], phase.start_s / unit_s, phase.end_s / unit_s)
            for phase in run.phases
            if phase.name in PHASES
        ],
        width=width,
        height=height,
        as_percent=True,
        y_range=(0.0, 1.0),
        css=COLOURS + CHART if alone else "",
    )


def _over_time(run: RunData, key: str, unit_s: float) -> list[tuple[float, float]]:
    pairs = [(step["at_s"] / unit_s, number(step.get(key))) for step in run.steps]
    return [(x, y) for x, y in pairs if y is not None]


def _held_out(run: RunData, mode: str, unit_s: float) -> list[Mark]:
    marks = []
    for rates in run.rates:
        value = rates.sampled if mode == "sampled" else rates.greedy
        interval = rates.sampled_interval if mode == "sampled" else rates.greedy_interval
        if rates.at_s is not None and value is not None:
            title = f"{rates.title}, {mode}"
            marks.append(Mark(rates.at_s / unit_s, value, interval, title))
    return marks


def _drawable(name: str) -> str:
    """A name with the characters that every font has."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in name[:80])


def write_svg(run: RunData, path: Path) -> None:
    """The curve as a drawing of its own, light and dark."""
    path.write_text(draw(curve(run, width=1120, height=460, alone=True)), "utf-8")


def write_png(run: RunData, path: Path) -> bool:
    """The curve as a bitmap; False when matplotlib (extra ``report``) is not there."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    colours = {"c1": "#2463d6", "c2": "#d4540b", "c3": "#0b8a6a", "c4": "#8a5cd1"}
    chart = curve(run, width=1120, height=460)
    figure = Figure(figsize=(11.2, 5.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for index, band in enumerate(chart.bands):
        shade = ("#2463d6", "#d4540b")[index % 2]
        axes.axvspan(band.start, band.end, color=shade, alpha=0.05, lw=0)
        axes.text((band.start + band.end) / 2, 0.985, band.name, ha="center", va="top",
                  color="#5d6877", fontsize=9)  # fmt: skip
    for line in chart.lines:
        if line.points:
            colour = colours[line.colour]
            axes.plot(*zip(*line.points, strict=True), color=colour, alpha=0.25, lw=0.8)
            mean = running_mean(line.points, line.smooth)
            axes.plot(*zip(*mean, strict=True), color=colour, lw=1.8, label=line.name)
    for marks in chart.marks:
        if marks.marks:
            below = [m.y - m.interval[0] if m.interval else 0.0 for m in marks.marks]
            above = [m.interval[1] - m.y if m.interval else 0.0 for m in marks.marks]
            axes.errorbar(
                [m.x for m in marks.marks],
                [m.y for m in marks.marks],
                yerr=[[max(0.0, b) for b in below], [max(0.0, a) for a in above]],
                fmt="o--" if marks.shape == "circle" else "s--",
                color=colours[marks.colour],
                capsize=4,
                lw=1.2,
                label=marks.name,
            )
    axes.set(xlabel=chart.x_label, ylabel="share of tasks", ylim=(0, 1))
    axes.set_title(_drawable(run.name), parse_math=False)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.grid(axis="y", color="#e2e6eb")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", frameon=False)
    figure.savefig(path)
    return True
