"""A box killed from outside in the middle of a rollout: tried again, never a zero."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from trialyard.core.clock import SystemClock
from trialyard.core.policy import Completion, Message, Sampling
from trialyard.core.sandbox import SandboxPool
from trialyard.core.task import AgentSpec, Task, TaskSpec, ValuesCheck
from trialyard.core.trajectory import Trajectory
from trialyard.graders.fresh_box import FreshBoxGrader
from trialyard.rollout.rollout import Roller, RolloutRequest
from trialyard.rollout.shell import ShellTool

CASES = b'[{"args": [], "expected": 1}]'
TASK = Task(
    TaskSpec(
        id="t/killed",
        instruction="write f",
        agent=AgentSpec(tool="shell", max_turns=4),
        checks=(ValuesCheck(name="h", file="solution.py", function="f", cases="h.json"),),
    ),
    tests={"h.json": CASES},
)
MARK = "seconds-of-a-very-long-sleep"
SLEEP = f"```bash\nexec -a {MARK} sleep 120\n```"
WRITE = "```file solution.py\ndef f():\n    return 1\n```\n```submit\n```"


class SleepsFirst:
    """Sleeps in its first attempt, solves in the later ones."""

    def __init__(self) -> None:
        self.calls = 0

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        self.calls += 1
        return Completion(SLEEP if self.calls == 1 else WRITE, "stop")

    async def close(self) -> None:
        pass


def processes_named(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def init_of(pid: int) -> int:
    """The box's first process: the topmost ancestor that is not the supervisor's own."""
    while True:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
        if parent in (os.getpid(), 1, 0):
            return pid
        pid = parent


async def roll(pool: SandboxPool) -> Trajectory:
    roller = Roller(
        policy=SleepsFirst(),
        pool=pool,
        grader=FreshBoxGrader(pool, SystemClock()),
        tool_for=lambda _: ShellTool(),
        clock=SystemClock(),
    )
    return await roller.run(RolloutRequest("run", "g", 0, TASK, Sampling(), seed=1))


async def test_the_attempt_is_repeated_and_the_record_says_why(pool: SandboxPool) -> None:
    rolling = asyncio.ensure_future(roll(pool))
    victims: list[int] = []
    for _ in range(600):
        victims = processes_named(MARK)
        if victims:
            break
        await asyncio.sleep(0.05)
    assert victims, "the first attempt never began"
    os.kill(init_of(victims[0]), signal.SIGKILL)
    trajectory = await asyncio.wait_for(rolling, 60)
    assert trajectory.verdict.status == "graded"
    assert trajectory.reward == 1.0
    assert trajectory.attempt == 1
    [fault] = trajectory.faults
    assert fault.startswith("sandbox lost")
    assert "nothing" not in fault.rpartition("[host:")[2]
