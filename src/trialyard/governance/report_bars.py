"""Bars of a report: time by phase, staleness, idle shares, faults."""

from collections import Counter

from trialyard.governance.report_data import (
    LABELS,
    PHASES,
    RunData,
    number,
    phase_seconds,
    staleness,
)
from trialyard.governance.report_text import duration, escaped, inline, percent

_TONES = ("c1", "c2", "c3", "c4")


def time_section(run: RunData) -> str:
    cards = [_time(run), _staleness(run), _idle(run)]
    drawn = "".join(card for card in cards if card)
    return f'<h2>Time and staleness</h2><div class="grid charts">{drawn}</div>' if drawn else ""


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
        f'{escaped(_phase_name(name))} <span class="muted">{duration(value)}</span></span>'
        for i, (name, value) in enumerate(seconds.items())
    )
    return (
        f'<div class="card"><h3>Wall time by phase, {duration(total)}</h3>'
        f'<div class="stack">{stack}</div><div class="keys">{keys}</div></div>'
    )


def _phase_name(name: str) -> str:
    """``evaluation after_rl`` as people say it."""
    if name in PHASES:
        return PHASES[name]
    kind, _, label = name.partition(" ")
    return f"{kind.capitalize()} {inline(LABELS[label])}" if label in LABELS else name


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


def fault_counts(run: RunData) -> dict[str, int]:
    found = run.summary.get("faults")
    if isinstance(found, dict):
        counts = {str(kind): int(number(count) or 0) for kind, count in found.items()}
    else:
        counts = dict(Counter(str(fault.get("fault")) for fault in run.faults))
    return {kind: count for kind, count in counts.items() if count}


def faults_section(run: RunData) -> str:
    counts = fault_counts(run)
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
