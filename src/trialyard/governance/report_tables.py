"""Tables of a report: the figures to see first, and the held-out solve rates."""

from collections.abc import Sequence

from trialyard.governance.report_bars import fault_counts
from trialyard.governance.report_data import Rates, RunData, number
from trialyard.governance.report_samples import Samples
from trialyard.governance.report_text import (
    compact,
    escaped,
    inline,
    percent,
    percent_range,
    points,
)


def tiles(run: RunData, samples: Samples) -> str:
    """The figures to see first."""
    gains = [
        _gain_tile("Held-out solve rate, sampled", run.held_out, "sampled"),
        _gain_tile("Held-out solve rate, greedy", run.held_out, "greedy"),
    ]
    tiles = [
        _tile("Rollouts", compact(_total(run, "rollouts", "num_trajectories")), _speed(run)),
        _tile("Optimiser steps", compact(_total(run, "steps", "")), _tokens(run)),
        _tile("Staleness, mean", *_staleness_figures(run)),
        _tile("Faults", compact(sum(fault_counts(run).values())), "retried or left out"),
    ]
    if samples.num_stored:
        note = "kept on disk, each once"
        tiles.append(_tile("Trajectories stored", compact(samples.num_stored), note))
    return (
        f'<div class="grid gains">{"".join(gains)}</div>'
        f'<div class="grid tiles">{"".join(tiles)}</div>'
    )


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
    if len(values) == 1:
        return _tile(name, percent(last), inline(title))
    before, base = values[-2]
    tone = "gain" if last > base else "loss" if last < base else "muted"
    change = (
        f'<span class="{tone}">{points(last - base)}</span> from {inline(before)} '
        f"to {inline(title)}"
    )
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


def rates_table(run: RunData) -> str:
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
