"""The learner in a process of its own, so that gradient steps never hold up rollouts.

The parent starts the child at once (importing torch takes seconds) and speaks with it
over a socket pair: a request is a method and its arguments, a reply a result or an
error. The child is our own program, so both sides may pickle. The child dies with its
parent; a parent whose child died gets `LearnerError`. Construct it on a thread that
lives as long as it does: the kernel counts the death of that thread as the parent's.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from trialyard.core.child import die_with_parent, ending
from trialyard.core.errors import LearnerError, TrialyardError
from trialyard.core.learner import StepReport, TrainingSequence
from trialyard.learning.settings import RlSettings, SftSettings

Method = Literal["sft_step", "rl_step", "weights", "save", "restore"]
CLOSE_TIMEOUT_S = 5.0


class ProcessLearner:
    """Implements `Learner`: a `TorchLearner` in a child process."""

    def __init__(
        self,
        directory: Path,
        *,
        sft: SftSettings | None = None,
        rl: RlSettings | None = None,
        seed: int = 0,
        num_threads: int = 1,
    ) -> None:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trialyard.learning.process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._turn = threading.Lock()
        self._closed = False
        options = {"sft": sft, "rl": rl, "seed": seed, "num_threads": num_threads}
        with contextlib.suppress(OSError):  # a child that is gone is reported by the first call
            self._connection.send((os.getpid(), directory, options))

    @property
    def process_id(self) -> int:
        """Process id of the child."""
        return self._process.pid

    async def sft_step(self, sequences: list[TrainingSequence]) -> StepReport:
        report: StepReport = await self._call("sft_step", sequences)
        return report

    async def rl_step(self, sequences: list[TrainingSequence]) -> StepReport:
        report: StepReport = await self._call("rl_step", sequences)
        return report

    async def weights(self) -> bytes:
        weights: bytes = await self._call("weights")
        return weights

    async def save(self) -> bytes:
        state: bytes = await self._call("save")
        return state

    async def restore(self, state: bytes) -> None:
        await self._call("restore", state)

    async def close(self) -> None:
        """Kill the child: all that must last was saved before."""
        self._closed = True
        if self._process.poll() is None:
            self._process.kill()
        await asyncio.to_thread(self._process.wait, CLOSE_TIMEOUT_S)
        with self._turn:
            self._connection.close()

    async def _call(self, method: Method, *arguments: object) -> Any:
        outcome = await asyncio.to_thread(self._exchange, method, arguments)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _exchange(self, method: Method, arguments: tuple[object, ...]) -> Any:
        with self._turn:
            if self._closed:
                return LearnerError("the learner is closed; make a new one")
            try:
                self._connection.send((method, arguments))
                return self._connection.recv()
            except (EOFError, OSError):
                code = self._process.wait(CLOSE_TIMEOUT_S)
                return LearnerError(
                    f"the learner process is gone ({ending(code)}) during {method};"
                    " resume the run from its last checkpoint"
                )


async def _serve(connection: Connection) -> None:
    """Child: answer requests until the parent hangs up."""
    parent, directory, options = connection.recv()
    die_with_parent(parent)
    learner: Any = None
    while True:
        method, arguments = connection.recv()
        try:
            if learner is None:
                learner = _make(directory, options)
            call: Callable[..., Awaitable[Any]] = getattr(learner, method)
            connection.send(await call(*arguments))
        except TrialyardError as error:
            connection.send(error)
        except Exception as error:  # noqa: BLE001 - the parent decides what to do about it
            trace = "".join(traceback.format_exception(error)[-3:])
            connection.send(LearnerError(f"the learner broke in {method}: {error}\n{trace}"))


def _make(directory: Path, options: dict[str, Any]) -> Any:
    from trialyard.learning.learner import TorchLearner

    return TorchLearner(directory, **options)


def main() -> None:
    """Entry of the child process."""
    import torch  # noqa: F401 - imported before the first request, which may come much later

    with contextlib.suppress(EOFError), Connection(int(sys.argv[1])) as connection:
        asyncio.run(_serve(connection))


if __name__ == "__main__":
    main()
