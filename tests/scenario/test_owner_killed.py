"""Case 47: a killed trainer's boxes go, the next run starts at once, a neighbour feels nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.boxes import groups_of, processes_of_owner
from trialyard.sandboxes.host import RUNTIME_DIRECTORY
from trialyard.sandboxes.reclaim import list_owners

HOLDER = """
import asyncio, signal, sys
from tests.boxes import namespace_pool
from trialyard.core.sandbox import Limits
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs tests may ignore it
async def main(count):
    pool = namespace_pool(max_boxes=count)
    lease = pool.acquire_many(count, image="host", limits=Limits(), owner="run")
    async with lease as boxes:
        runs = [asyncio.create_task(box.run(["sleep", "600"])) for box in boxes]
        await asyncio.sleep(0.1)
        print(pool._host.owner.name, flush=True)
        await asyncio.wait(runs)
asyncio.run(main(int(sys.argv[1])))
"""


class Holder:
    """A process that holds `count` boxes, each with a long sleep in it."""

    def __init__(self, count: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(count)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.name = self.process.stdout.readline().strip()

    def boxes(self) -> int:
        """How many boxes its table says that it has."""
        found = [owner for owner in list_owners(RUNTIME_DIRECTORY) if owner.supervisor == self.name]
        return sum(len(owner.record.boxes) for owner in found)

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(timeout=60)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def has_left_nothing(self) -> bool:
        return (
            processes_of_owner(self.name) == []
            and groups_of(self.name) == []
            and not (RUNTIME_DIRECTORY / "owners" / self.name).exists()
        )

    def left_nothing_within(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while not self.has_left_nothing() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return self.has_left_nothing()


def kill_keeper_of(holder: Holder) -> None:
    children = Path(f"/proc/{holder.process.pid}/task/{holder.process.pid}/children").read_text()
    for child in children.split():
        if "keeper" in Path(f"/proc/{child}/cmdline").read_text():
            os.kill(int(child), signal.SIGKILL)


def test_case_47_sandboxes_left_after_sigkill() -> None:
    neighbour = Holder(2)
    victim = Holder(16)
    assert victim.boxes() == 16
    kill_keeper_of(victim)  # the worse case: nobody tidies up until the next run starts
    victim.end(signal.SIGKILL)
    successor = Holder(16)
    assert victim.has_left_nothing()
    assert (successor.boxes(), neighbour.boxes()) == (16, 2)
    assert neighbour.process.poll() is None
    assert len(processes_of_owner(neighbour.name)) >= 4
    successor.end(signal.SIGTERM)
    neighbour.end(signal.SIGINT)
    for holder in (successor, neighbour):
        assert holder.left_nothing_within(5)
