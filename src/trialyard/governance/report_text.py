"""Text on a page: everything that comes from a run is untrusted and passes through here.

`escaped` makes markup of nothing: HTML characters are escaped, control characters and
the ones that change the reading direction are shown as what they are.
"""

import html
import re
from datetime import UTC, datetime

MAX_CHARS = 6000
THIN = "\u202f"
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def escaped(value: object, *, limit: int = MAX_CHARS) -> str:
    """`value` as HTML text, shortened to `limit` characters."""
    text = _ANSI.sub("", str(value).replace("\r\n", "\n"))
    rest = len(text) - limit
    text = _HIDDEN.sub(lambda found: f"\u27e8U+{ord(found.group()):04X}\u27e9", text[:limit])
    more = f' <span class="muted">… {rest:,} more characters</span>' if rest > 0 else ""
    return html.escape(text, quote=True) + more


def percent(share: float | None, *, digits: int = 1) -> str:
    """A share such as ``81.0 %``; a dash when it is not known."""
    return "–" if share is None else f"{100 * share:.{digits}f}{THIN}%"


def percent_range(interval: tuple[float, float] | None) -> str:
    """An interval such as ``76.6–84.9 %``."""
    if interval is None:
        return ""
    return f"{100 * interval[0]:.1f}–{100 * interval[1]:.1f}{THIN}%"


def points(difference: float) -> str:
    """A difference of two shares such as ``+41.8 points``."""
    return f"{100 * difference:+.1f} points".replace("-", "−")


def duration(seconds: float) -> str:
    """Such as ``31 ms``, ``42 s``, ``7 min 05 s`` or ``3 h 12 min``."""
    if 0 < seconds < 1:
        return f"{1000 * seconds:.0f}{THIN}ms"
    whole = round(seconds)
    if whole < 100:
        return f"{seconds:.0f}{THIN}s"
    if whole < 3600:
        return f"{whole // 60}{THIN}min {whole % 60:02d}{THIN}s"
    return f"{whole // 3600}{THIN}h {whole % 3600 // 60:02d}{THIN}min"


def compact(value: float) -> str:
    """A count such as ``44,012``, or a small figure with two digits."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def moment(wall_s: float) -> str:
    """A wall-clock stamp such as ``2026-11-30 14:05 UTC``."""
    try:
        return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def inline(title: str) -> str:
    """A title within a sentence."""
    return title[0].lower() + title[1:]
