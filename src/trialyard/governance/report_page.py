"""The report's page, section by section."""

from collections.abc import Sequence

from trialyard.core.trajectory import Trajectory
from trialyard.governance.report_bars import faults_section, time_section
from trialyard.governance.report_chart import Chart, Line, draw
from trialyard.governance.report_conversation import conversation
from trialyard.governance.report_curve import curve
from trialyard.governance.report_data import (
    RunData,
    number,
)
from trialyard.governance.report_samples import Samples
from trialyard.governance.report_style import CHART, COLOURS, PAGE
from trialyard.governance.report_tables import rates_table, tiles
from trialyard.governance.report_text import (
    duration,
    escaped,
    moment,
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(run: RunData, samples: Samples) -> str:
    """The whole document."""
    sections = [
        _header(run),
        _missing(run),
        tiles(run, samples),
        _learning(run),
        rates_table(run),
        _charts(run),
        time_section(run),
        faults_section(run),
        _samples(samples),
        _config(run),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escaped(run.name)} – trialyard report</title>"
        f"<style>{COLOURS}{CHART}{PAGE}</style></head><body><main>{''.join(sections)}"
        "<footer>Written by trialyard. Intervals are 95 %. Times count while the run was active."
        "</footer></main></body></html>\n"
    )


def _header(run: RunData) -> str:
    state = "finished" if run.finished else "not finished"
    tone = "good" if run.finished else "warn"
    parts = [f'<span class="chip {tone}">{state}</span>']
    if run.started_s is not None:
        parts.append(f"started {moment(run.started_s)}")
        parts.append(f"active for {duration(run.duration_s)}")
    if (seed := number(run.summary.get("seed"))) is not None:
        parts.append(f"seed {seed:.0f}")
    return f'<h1>{escaped(run.name)}</h1><p class="sub">{" · ".join(parts)}</p>'


def _missing(run: RunData) -> str:
    if not run.missing:
        return ""
    items = "".join(f"<li>{escaped(item, limit=500)}</li>" for item in run.missing)
    return f'<div class="note"><b>What is missing</b><ul>{items}</ul></div>'


def _learning(run: RunData) -> str:
    if not run.steps and not run.rates:
        return '<h2>Learning curve</h2><div class="card muted">Nothing to draw yet.</div>'
    wide = draw(curve(run, width=1180, height=430))
    narrow = draw(curve(run, width=350, height=330))
    return (
        f'<h2>Learning curve</h2><div class="card"><div class="wide">{wide}</div>'
        f'<div class="narrow">{narrow}</div></div>'
    )


def _charts(run: RunData) -> str:
    charts = [
        _step_chart(run, "Loss", [("", "loss", "c1")]),
        _step_chart(
            run,
            "Idle shares",
            [
                ("sampler", "sampler_idle", "c1"),
                ("learner", "learner_idle", "c2"),
                ("sandboxes", "sandbox_idle", "c3"),
            ],
            as_percent=True,
            y_range=(0.0, 1.0),
        ),
        _step_chart(run, "Rollouts a second", [("", "rollouts_per_s", "c3")]),
        _step_chart(
            run, "Staleness", [("mean", "staleness_mean", "c1"), ("largest", "staleness_max", "c2")]
        ),
        _step_chart(run, "Sampled tokens a step", [("", "num_tokens", "c4")]),
        _sft_chart(run),
    ]
    drawn = "".join(chart for chart in charts if chart)
    return f'<h2>Step by step</h2><div class="grid charts">{drawn}</div>' if drawn else ""


def _step_chart(
    run: RunData,
    title: str,
    series: Sequence[tuple[str, str, str]],
    *,
    as_percent: bool = False,
    y_range: tuple[float, float] | None = None,
) -> str:
    window = max(2, len(run.steps) // 25)
    lines = [Line(name, run.series(key), colour, window) for name, key, colour in series]
    if not any(line.points for line in lines):
        return ""
    chart = Chart(title, "step", lines, as_percent=as_percent, y_range=y_range)
    return f'<div class="card"><h3>{title}</h3>{draw(chart)}</div>'


def _sft_chart(run: RunData) -> str:
    losses = [(number(step["step"]), number(step.get("loss"))) for step in run.sft_steps]
    found = [(x, y) for x, y in losses if x is not None and y is not None]
    if not found:
        return ""
    stride = max(1, len(found) // 400)
    line = Line("", found[::stride], "c2", max(2, len(found[::stride]) // 25))
    chart = Chart("SFT loss", "SFT step", [line])
    return f'<div class="card"><h3>SFT loss</h3>{draw(chart)}</div>'


def _samples(samples: Samples) -> str:
    sections: list[tuple[str, str, list[Trajectory]]] = [
        ("Corrected after a failed try", "A failing observation later turned to passing.",
         samples.corrected),
        ("Best", "Solved with the highest reward in the fewest turns.", samples.best),
        ("Worst", "The lowest reward, of those that were graded.", samples.worst),
    ]  # fmt: skip
    parts = []
    for title, note, records in sections:
        if records:
            cards = [conversation(r, is_open=index == 0) for index, r in enumerate(records)]
            parts.append(f'<h3>{title}</h3><p class="muted">{note}</p>{"".join(cards)}')
    if not parts:
        return ""
    return f"<h2>Sample trajectories</h2>{''.join(parts)}"


def _config(run: RunData) -> str:
    if not run.config:
        return ""
    return (
        '<h2>Settings</h2><details class="card config"><summary>config.resolved.toml</summary>'
        f'<pre class="columns">{escaped(run.config, limit=40_000)}</pre></details>'
    )
