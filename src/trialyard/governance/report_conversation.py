"""A trajectory as a readable conversation: task, tries, observations, commands, tests."""

from collections.abc import Sequence

from trialyard.core.grader import TestResult
from trialyard.core.trajectory import CommandRecord, Trajectory, Turn
from trialyard.governance.report_samples import Correction, correction, turn_passed
from trialyard.governance.report_text import THIN, compact, duration, escaped

MAX_TURNS = 24
MAX_TESTS = 40
MAX_COMMANDS = 20


def conversation(trajectory: Trajectory, *, is_open: bool) -> str:
    """One trajectory as a folding card."""
    opened = " open" if is_open else ""
    return (
        f'<details class="card sample"{opened}><summary><b>{escaped(trajectory.task_id)}</b>'
        f"{_chips(trajectory)}</summary>"
        f'<ol class="talk">{"".join(_turns(trajectory))}</ol>{_checks(trajectory)}'
        f"{_tests(trajectory.verdict.tests)}{_tampering(trajectory)}</details>"
    )


def _chips(trajectory: Trajectory) -> str:
    verdict = trajectory.verdict
    reward = "ungraded" if trajectory.reward is None else f"reward {trajectory.reward:.2f}"
    tone = "good" if verdict.passed else "warn" if trajectory.reward else "bad"
    chips = [
        ("solved" if verdict.passed else "not solved", tone),
        (reward, tone),
        (f"{len(trajectory.turns)} turn{'s' * (len(trajectory.turns) != 1)}", ""),
        (f"{trajectory.num_output_tokens:,} tokens", ""),
        (f"ended by {trajectory.stop.value}", ""),
        (f"policy version {_versions(trajectory)}", ""),
        (duration(trajectory.wall_s), ""),
        (trajectory.group, ""),
    ]
    if verdict.fault != "none":
        chips.append((f"fault {verdict.fault}", "warn"))
    if trajectory.attempt:
        chips.append((f"attempt {trajectory.attempt + 1}", "warn"))
    if verdict.tampering:
        chips.append(("tampering", "bad"))
    shown = (f'<span class="chip {tone}">{escaped(name, limit=80)}</span>' for name, tone in chips)
    return f'<span class="chips">{"".join(shown)}</span>'


def _versions(trajectory: Trajectory) -> str:
    versions = {span.version for turn in trajectory.turns for span in turn.versions}
    if not versions:
        return "unknown"
    low, high = min(versions), max(versions)
    return str(low) if low == high else f"{low} to {high}"


def _turns(trajectory: Trajectory) -> list[str]:
    mended = correction(trajectory)
    parts = []
    observation: str | None = None
    for index, turn in enumerate(trajectory.turns[:MAX_TURNS]):
        if turn.context != observation:
            who = "Context" if index else "Task"
            parts.append(f'<li><div class="who">{who}</div><pre>{escaped(turn.context)}</pre></li>')
        parts.append(_try(index, turn, mended))
        observation = turn.observation
    left = len(trajectory.turns) - MAX_TURNS
    if left > 0:
        parts.append(f'<li class="muted">… {left} more turns</li>')
    return parts


def _try(index: int, turn: Turn, mended: Correction | None) -> str:
    tokens = f"{len(turn.output_ids)} tokens"
    cut = ", cut at the token limit" if turn.finish == "length" else ""
    parts = [
        f'<li class="policy"><div class="who">Policy, turn {index + 1} '
        f"({tokens}{cut}, {duration(turn.policy_s)})</div><pre>{escaped(turn.output)}</pre></li>"
    ]
    if turn.observation or turn.commands:
        passed = turn_passed(turn)
        tone = {True: "passing", False: "failing", None: ""}[passed]
        note = ""
        if mended is not None and index == mended.failed:
            note = f" – fails here, mended in turn {mended.passed + 1}"
        elif mended is not None and index == mended.passed:
            note = " – passes now"
        commands = "".join(_command(command) for command in turn.commands[:MAX_COMMANDS])
        parts.append(
            f'<li class="{tone}"><div class="who">Sandbox ({duration(turn.sandbox_s)}){note}</div>'
            f"<pre>{escaped(turn.observation)}</pre>{commands}</li>"
        )
    return "".join(parts)


def _command(command: CommandRecord) -> str:
    output = (command.stdout + command.stderr).decode("utf-8", "replace").strip("\n")
    exit_code = "" if command.exit_code is None else f" {command.exit_code}"
    return (
        f'<details class="commands"><summary class="muted">$ '
        f"{escaped(' '.join(command.argv), limit=120)} → {escaped(command.status)}{exit_code}, "
        f"{duration(command.wall_s)}</summary><pre>{escaped(output)}</pre></details>"
    )


def _checks(trajectory: Trajectory) -> str:
    verdict = trajectory.verdict
    rows = "".join(
        f"<tr><td>{escaped(check.name)}</td>"
        f'<td class="num">{"–" if check.score is None else f"{check.score:.2f}"}</td>'
        f'<td class="num">{compact(check.weight)}</td><td>{escaped(check.evidence, limit=400)}</td>'
        "</tr>"
        for check in verdict.checks
    )
    reason = f"<p>{escaped(verdict.reason, limit=600)}</p>" if verdict.reason else ""
    if not rows:
        return reason
    return (
        f'{reason}<div class="scroll"><table class="tests"><tr><th>hidden check</th>'
        f'<th class="num">score</th><th class="num">weight</th><th>evidence</th></tr>{rows}'
        "</table></div>"
    )


def _tests(tests: Sequence[TestResult]) -> str:
    if not tests:
        return ""
    passed = sum(test.status == "passed" for test in tests)
    rows = "".join(
        f'<tr><td>{escaped(test.id, limit=200)}</td><td class="{_tone(test)}">'
        f'{escaped(test.status)}</td><td class="num">{1000 * test.duration_s:.1f}{THIN}ms</td>'
        f"<td>{escaped(test.message, limit=300)}</td></tr>"
        for test in tests[:MAX_TESTS]
    )
    left = len(tests) - MAX_TESTS
    more = f'<tr><td class="muted" colspan="4">… {left} more</td></tr>' if left > 0 else ""
    return (
        f'<details><summary class="muted">hidden tests: {passed} of {len(tests)} passed</summary>'
        f'<div class="scroll"><table class="tests"><tr><th>test</th><th>status</th>'
        f'<th class="num">time</th><th>message</th></tr>{rows}{more}</table></div></details>'
    )


def _tone(test: TestResult) -> str:
    if test.status in ("passed", "xfailed"):
        return "pass"
    return "muted" if test.status in ("skipped", "not_run") else "fail"


def _tampering(trajectory: Trajectory) -> str:
    found = "".join(
        f"<li>{escaped(finding.kind)} {escaped(finding.path)}: {escaped(finding.evidence)}</li>"
        for finding in trajectory.verdict.tampering
    )
    return f'<div class="note">Signs of cheating<ul>{found}</ul></div>' if found else ""
