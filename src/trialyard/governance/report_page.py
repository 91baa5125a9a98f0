"""The report's page, section by section."""

from collections import Counter
from collections.abc import Sequence

from trialyard.core.trajectory import Trajectory
from trialyard.governance.report_chart import Chart, Line, draw
from trialyard.governance.report_conversation import conversation
from trialyard.governance.report_curve import curve
from trialyard.governance.report_data import (
    Rates,
    RunData,
    number,
    phase_seconds,
    staleness,
)
from trialyard.governance.report_samples import Samples
from trialyard.governance.report_style import CHART, COLOURS, PAGE
from trialyard.governance.report_text import (
    compact,
    duration,
    escaped,
    moment,
    percent,
    percent_range,
    points,
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_TONES = ("c1", "c2", "c3", "c4")


def page(run: RunData, samples: Samples) -> str:
    """The whole document."""
    sections = [
        _header(run),
        _missing(run),
        _tiles(run, samples),
        _learning(run),
        _rates(run),
        _charts(run),
        _time_and_staleness(run),
        _faults(run),
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


def _tiles(run: RunData, samples: Samples) -> str:
    tiles = [
        _gain_tile("Held-out solve rate, sampled", run.held_out, "sampled"),
        _gain_tile("Held-out solve rate, greedy", run.held_out, "greedy"),
        _tile("Rollouts", compact(_total(run, "rollouts", "num_trajectories")), _speed(run)),
        _tile("Optimiser steps", compact(_total(run, "steps", "")), _tokens(run)),
        _tile("Staleness, mean", *_staleness_figures(run)),
        _tile("Faults", compact(sum(_fault_counts(run).values())), "retried or left out"),
    ]
    if samples.num_stored:
        note = "kept on disk, each once"
        tiles.append(_tile("Trajectories stored", compact(samples.num_stored), note))
    return f'<div class="grid tiles">{"".join(tiles)}</div>'


def _tile(name: str, value: str, note: str) -> str:
    return (
        f'<div class="card tile"><span class="name">{name}</span><b>{value}</b>'
        f"<span>{note}</span></div>"
    )


def _gain_tile(name: str, held_out: Sequence[Rates], mode: str) -> str:
    known = [(r.title, r.sampled if mode == "sampled" else r.greedy) for r in held_out]
    values = [(title, value) for title, value in known if value is not None]
    if not values:
        return _tile(name, "–", "not evaluated yet")
    title, last = values[-1]
    base = next((value for t, value in values if t == "After SFT"), values[0][1])
    if len(values) == 1:
        return _tile(name, percent(last), title.lower())
    tone = "gain" if last >= base else "loss"
    before = "SFT" if "After SFT" in dict(values) else "before"
    change = f'<span class="{tone}">{points(last - base)}</span> from {before} to {title.lower()}'
    return _tile(name, f'<span class="was">{percent(base)} →</span> {percent(last)}', change)


def _total(run: RunData, key: str, step_key: str) -> float:
    known = number(run.summary.get(key))
    if known is not None:
        return known
    return (
        sum(number(step.get(step_key)) or 0 for step in run.steps) if step_key else len(run.steps)
    )


def _speed(run: RunData) -> str:
    rates = [rate for _, rate in run.series("rollouts_per_s")]
    return f"{compact(sum(rates) / len(rates))} a second in RL" if rates else ""


def _tokens(run: RunData) -> str:
    tokens = _total(run, "tokens", "num_tokens")
    return f"{compact(tokens)} sampled tokens" if tokens else ""


def _staleness_figures(run: RunData) -> tuple[str, str]:
    means = [mean for _, mean in run.series("staleness_mean")]
    largest = [value for _, value in run.series("staleness_max")]
    if not means:
        return "–", ""
    return f"{sum(means) / len(means):.2f}", f"largest {max(largest, default=0):.0f} versions"


def _learning(run: RunData) -> str:
    if not run.steps and not run.rates:
        return '<h2>Learning curve</h2><div class="card muted">Nothing to draw yet.</div>'
    wide = draw(curve(run, width=1180, height=430))
    narrow = draw(curve(run, width=350, height=330))
    return (
        f'<h2>Learning curve</h2><div class="card"><div class="wide">{wide}</div>'
        f'<div class="narrow">{narrow}</div></div>'
    )


def _rates(run: RunData) -> str:
    if not run.rates:
        return ""
    named = run.held_out
    others = [rates for rates in run.rates if rates not in named]
    rows = "".join(_rate_row(rates) for rates in [*named[:-1], *others, *named[-1:]])
    by_label = {rates.label: rates for rates in named}
    total = ""
    if "after_sft" in by_label and "after_rl" in by_label:
        before, after = by_label["after_sft"], by_label["after_rl"]
        changes = [_change(before.greedy, after.greedy), _change(before.sampled, after.sampled)]
        cells = "".join(f'<td class="num">{change}</td>' for change in changes)
        total = f'<tr class="total"><td>RL minus SFT</td>{cells}<td class="num"></td><td></td></tr>'
    return (
        '<h2>Held-out tasks</h2><div class="card scroll"><table class="rates"><tr><th></th>'
        '<th class="num">greedy</th><th class="num">sampled</th><th class="num">tasks</th>'
        f'<th class="plot"><span class="dot" style="background:var(--c2)"></span>greedy &nbsp; '
        '<span class="dot" style="background:var(--c1)"></span>sampled, 0 to 100 %</th></tr>'
        f"{rows}{total}</table></div>"
    )


def _change(before: float | None, after: float | None) -> str:
    return "–" if before is None or after is None else points(after - before)


def _rate_row(rates: Rates) -> str:
    cells = "".join(
        f'<td class="num">{percent(value)} <small>{percent_range(interval)}</small></td>'
        for value, interval in (
            (rates.greedy, rates.greedy_interval),
            (rates.sampled, rates.sampled_interval),
        )
    )
    n = "–" if rates.n is None else f"{rates.n:,}"
    return (
        f'<tr><td>{escaped(rates.title)}</td>{cells}<td class="num">{n}</td>'
        f'<td class="plot">{_interval_plot(rates)}</td></tr>'
    )


def _interval_plot(rates: Rates) -> str:
    """Both rates with their intervals on one line from 0 to 100 %."""
    parts = ['<line class="grid" x1="0" x2="300" y1="14" y2="14"/>']
    for y, colour, value, interval in (
        (9, "c2", rates.greedy, rates.greedy_interval),
        (19, "c1", rates.sampled, rates.sampled_interval),
    ):
        if value is not None:
            low, high = interval or (value, value)
            parts.append(
                f'<path style="stroke:var(--{colour});stroke-width:3;stroke-linecap:round" '
                f'd="M{300 * low:.1f} {y}H{300 * high:.1f}"/>'
                f'<circle style="fill:var(--{colour})" cx="{300 * value:.1f}" cy="{y}" r="4.5"/>'
            )
    return f'<svg class="chart" viewBox="-5 0 310 28" aria-hidden="true">{"".join(parts)}</svg>'


def _charts(run: RunData) -> str:
    charts = [
        _step_chart(run, "Reward", [("", "reward_mean", "c4")], y_range=(0.0, 1.0)),
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


def _time_and_staleness(run: RunData) -> str:
    cards = [_time(run), _staleness(run), _idle(run)]
    drawn = "".join(card for card in cards if card)
    return f'<h2>Where the time went</h2><div class="grid pair">{drawn}</div>' if drawn else ""


def _time(run: RunData) -> str:
    seconds = {name: value for name, value in phase_seconds(run).items() if value > 0}
    total = sum(seconds.values())
    if not total:
        return ""
    stack = "".join(
        f'<i style="width:{100 * value / total:.2f}%;background:var(--{_TONES[i % 4]});'
        f'opacity:{1 - 0.35 * (i // 4):.2f}"></i>'
        for i, value in enumerate(seconds.values())
    )
    keys = "".join(
        f'<span><i style="background:var(--{_TONES[i % 4]});opacity:{1 - 0.35 * (i // 4):.2f}"></i>'
        f'{escaped(name)} <span class="muted">{duration(value)}</span></span>'
        for i, (name, value) in enumerate(seconds.items())
    )
    return (
        f'<div class="card"><h3>Wall time by phase, {duration(total)}</h3>'
        f'<div class="stack">{stack}</div><div class="keys">{keys}</div></div>'
    )


def _staleness(run: RunData) -> str:
    counts = staleness(run)
    if not counts:
        return ""
    named = {f"{key} version{'s' * (key != '1')}": count for key, count in counts.items()}
    return (
        f'<div class="card"><h3>Staleness of consumed trajectories</h3>{_bars(named, "c1")}</div>'
    )


def _idle(run: RunData) -> str:
    found = run.summary.get("idle")
    shares: dict[str, float] = {}
    for name, key in (
        ("sampler", "sampler_idle"),
        ("learner", "learner_idle"),
        ("sandboxes", "sandbox_idle"),
    ):
        value = number(found.get(name)) if isinstance(found, dict) else None
        series = [share for _, share in run.series(key)]
        if value is None and series:
            value = sum(series) / len(series)
        if value is not None:
            shares[name] = value
    if not shares:
        return ""
    rows = "".join(
        f'<span>{name}</span><span class="track"><i class="c3" '
        f'style="width:{100 * min(1.0, max(0.0, share)):.1f}%"></i></span>'
        f"<span>{percent(share, digits=0)}</span>"
        for name, share in shares.items()
    )
    return (
        f'<div class="card"><h3>Idle share while learning</h3><div class="bars">{rows}</div></div>'
    )


def _bars(counts: dict[str, int], colour: str) -> str:
    total, largest = sum(counts.values()), max(counts.values(), default=0)
    rows = "".join(
        f'<span>{escaped(name, limit=60)}</span><span class="track"><i style="'
        f"width:{100 * count / max(1, largest):.1f}%;background:var(--{colour})"
        f'"></i></span><span>{count:,} <span class="muted">'
        f"{percent(count / max(1, total))}</span></span>"
        for name, count in counts.items()
    )
    return f'<div class="bars">{rows}</div>'


def _fault_counts(run: RunData) -> dict[str, int]:
    found = run.summary.get("faults")
    if isinstance(found, dict):
        counts = {str(kind): int(number(count) or 0) for kind, count in found.items()}
    else:
        counts = dict(Counter(str(fault.get("fault")) for fault in run.faults))
    return {kind: count for kind, count in counts.items() if count}


def _faults(run: RunData) -> str:
    counts = _fault_counts(run)
    if not counts:
        none = "None: no box was lost, no policy call failed, no task broke."
        return f'<h2>Faults</h2><div class="card muted">{none}</div>'
    where = Counter(str(fault.get("where") or "unknown") for fault in run.faults)
    rows = "".join(
        f"<tr><td>{escaped(fault.get('where', ''), limit=60)}</td>"
        f"<td>{escaped(fault.get('fault', ''), limit=40)}</td>"
        f"<td>{escaped(fault.get('task_id', ''), limit=80)}</td>"
        f'<td class="num">{escaped(fault.get("attempt", ""), limit=10)}</td>'
        f"<td>{escaped(fault.get('message', ''), limit=240)}</td></tr>"
        for fault in run.faults[-12:]
    )
    table = (
        '<details class="card" style="margin-top:16px"><summary>The latest faults</summary>'
        '<div class="scroll"><table class="tests"><tr><th>where</th><th>fault</th><th>task</th>'
        f'<th class="num">attempt</th><th>message</th></tr>{rows}</table></div></details>'
    )
    return (
        '<h2>Faults</h2><div class="grid pair"><div class="card"><h3>By whose fault it was</h3>'
        f"{_bars(counts, 'c2')}</div>"
        f'<div class="card"><h3>By what failed</h3>{_bars(dict(where.most_common(8)), "c2")}</div>'
        f"</div>{table if rows else ''}"
    )


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
