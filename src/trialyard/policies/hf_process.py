"""A local model sampled in a process of its own.

Decoding is thousands of short calls into torch; in one process with a busy event loop
it would wait for the interpreter's lock at each of them. The child runs `HFPolicy`; the
two speak in pickled frames over a socket pair (the child is our own program). It dies
with its parent; a parent whose child died gets `PolicyError` for every call under way.
Construct it on a thread that lives as long as it does (see `core.child`).
"""

import asyncio
import contextlib
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trialyard.core.child import die_with_parent, ending
from trialyard.core.errors import PolicyError, TrialyardError
from trialyard.core.policy import Completion, Message, Sampling
from trialyard.policies.hf_conversation import Conversation, load_conversation

LENGTH = struct.Struct(">Q")
CLOSE_TIMEOUT_S = 5.0
CHILD = "from trialyard.policies.hf_process import main; main()"
"""Not ``-m``: frames name the classes of this module, which would be ``__main__`` there."""


@dataclass(frozen=True, slots=True)
class Start:
    """First frame: what the child is made of."""

    parent: int
    directory: Path
    version: int
    max_rows: int
    num_threads: int
    gather_s: float


@dataclass(frozen=True, slots=True)
class Call:
    """A request; `method` is ``complete``, ``load`` or ``cancel``."""

    number: int
    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a call (an exception is raised) and the sampler's counters."""

    number: int
    outcome: Any
    busy_s: float
    num_sampled_tokens: int


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """One object. Raises `asyncio.IncompleteReadError` when the other side is gone."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


def frame(value: object) -> bytes:
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


class ProcessPolicy:
    """Implements `TrainablePolicy`: an `HFPolicy` in a child process, for one event loop."""

    def __init__(
        self,
        directory: Path,
        *,
        version: int = 0,
        max_rows: int = 256,
        num_threads: int = 1,
        gather_s: float = 0.0,
    ) -> None:
        self.conversation: Conversation = load_conversation(directory)
        self._version = version
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        start = Start(os.getpid(), directory, version, max_rows, num_threads, gather_s)
        with contextlib.suppress(OSError):  # a child that is gone is reported by the first call
            self._socket.sendall(frame(start))
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._writer: asyncio.StreamWriter | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._failure: PolicyError | None = None
        self.busy_s = 0.0
        self.num_sampled_tokens = 0

    @property
    def version(self) -> int:
        return self._version

    @property
    def process_id(self) -> int:
        """Process id of the child."""
        return self._process.pid

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        completion: Completion = await self._call("complete", tuple(messages), sampling)
        return completion

    async def load(self, weights: bytes, version: int) -> None:
        await self._call("load", weights, version)
        self._version = version

    async def close(self) -> None:
        self._fail(PolicyError("the policy is closed; make a new one"))
        if self._process.poll() is None:
            self._process.kill()
        await asyncio.to_thread(self._process.wait, CLOSE_TIMEOUT_S)
        if self._receiver is not None:
            await self._receiver
        if self._writer is not None:
            self._writer.close()
        self._socket.close()

    async def _call(self, method: str, *arguments: Any) -> Any:
        writer = await self._connected()
        if self._failure is not None:
            raise self._failure
        self._number += 1
        number, future = self._number, asyncio.get_running_loop().create_future()
        self._calls[number] = future
        try:
            writer.write(frame(Call(number, method, arguments)))
            with contextlib.suppress(ConnectionError):  # the receiver reports it
                await writer.drain()
            return await future
        except asyncio.CancelledError:
            writer.write(frame(Call(number, "cancel")))
            raise
        finally:
            self._calls.pop(number, None)

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                if self._failure is not None:
                    raise self._failure
                reader, self._writer = await asyncio.open_connection(sock=self._socket)
                self._receiver = asyncio.ensure_future(self._receive(reader))
            return self._writer

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """Hand replies to their callers until the child hangs up."""
        reason = "its replies cannot be read"
        try:
            while True:
                reply: Reply = await read_frame(reader)
                self.busy_s = reply.busy_s
                self.num_sampled_tokens = reply.num_sampled_tokens
                if reply.number in self._calls:
                    _resolve(self._calls[reply.number], reply.outcome)
        except (asyncio.IncompleteReadError, ConnectionError):
            reason = ending(await asyncio.to_thread(self._process.wait))
        finally:
            self._fail(PolicyError(f"the sampler process is gone ({reason}); resume the run"))

    def _fail(self, error: PolicyError) -> None:
        """Fail every call under way and all later ones; the first reason stays."""
        self._failure = self._failure or error
        for future in self._calls.values():
            _resolve(future, self._failure)


def _resolve(future: "asyncio.Future[Any]", outcome: Any) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


async def serve(connection: socket.socket) -> None:
    """Child: answer calls until the parent hangs up."""
    reader, writer = await asyncio.open_connection(sock=connection)
    start: Start = await read_frame(reader)
    die_with_parent(start.parent)
    from trialyard.policies.hf import HFPolicy

    failure: Exception | None = None
    policy: HFPolicy | None = None
    try:
        policy = HFPolicy(
            start.directory,
            version=start.version,
            max_rows=start.max_rows,
            num_threads=start.num_threads,
            gather_s=start.gather_s,
        )
    except TrialyardError as error:
        failure = error
    tasks: dict[int, asyncio.Task[None]] = {}

    async def answer(call: Call) -> None:
        outcome: Any = failure
        if policy is not None:
            try:
                outcome = await getattr(policy, call.method)(*call.arguments)
            except Exception as error:  # noqa: BLE001 - the parent raises it
                outcome = error
        counters = (policy.busy_s, policy.num_sampled_tokens) if policy else (0.0, 0)
        writer.write(frame(Reply(call.number, outcome, *counters)))
        del tasks[call.number]

    while True:
        call: Call = await read_frame(reader)
        if call.method == "cancel":
            if call.number in tasks:
                tasks.pop(call.number).cancel()
            continue
        work: Coroutine[Any, Any, None] = answer(call)
        tasks[call.number] = asyncio.ensure_future(work)


def main() -> None:
    """Entry of the child process."""
    with (
        contextlib.suppress(asyncio.IncompleteReadError, ConnectionError),
        socket.socket(fileno=int(sys.argv[1])) as connection,
    ):
        asyncio.run(serve(connection))


if __name__ == "__main__":
    main()
