"""Warm interpreters: Python runs that start as forks of an interpreter that is already up.

A zygote is one process per kind of start (flags and the environment that an interpreter reads
when it starts). It holds no secret and no descriptor of ours; its forks are confined to
their box before they read anything (native/zygote.c). Only interpreters of the read-only layer
are served, on the image that the zygote itself runs on, with a fixed hash seed, and in a box
in which nothing else is alive; every other command is started by the box's PID 1 as usual.
"""

import array
import asyncio
import contextlib
import functools
import os
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trialyard.sandboxes import protocol
from trialyard.sandboxes.protocol import Reply
from trialyard.sandboxes.request import RunRequest

PYTHON = "/opt/trialyard/python/bin/python3"
MAX_ZYGOTES = 4
MAX_FAILURES = 3
_FLAGS = frozenset({"-P", "-s", "-S", "-B", "-u"})
_HEEDED = frozenset(
    {"PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONUTF8",
     "LANG", "LANGUAGE", "TZ"}
)  # fmt: skip
_FORBIDDEN_PREFIXES = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "GCONV_", "LOCPATH", "TRIALYARD_")
_STOP_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class WarmImport:
    """Modules that interpreters hold already when the command line names `trigger`.

    They are imported from `directory`, a read-only layer as boxes see it, so that a program
    that imports them gets what it would have got, sooner.
    """

    trigger: str
    modules: tuple[str, ...]
    directory: str


@dataclass(frozen=True, slots=True)
class StartKind:
    """What an interpreter looks at when it starts. Equal kinds, equal interpreters."""

    flags: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]
    imports: tuple[WarmImport, ...] = ()


def start_kind(
    argv: Sequence[str], env: Mapping[str, str], warm_imports: Sequence[WarmImport] = ()
) -> StartKind | None:
    """The kind of a command that a zygote can stand in for; None for any other command."""
    if argv[0] != PYTHON or "PYTHONHASHSEED" not in env:
        return None
    count = 1
    while count < len(argv) and argv[count] in _FLAGS:
        count += 1
    flags, rest = tuple(argv[1:count]), argv[count:]
    if "-s" not in flags or not rest or not env["PYTHONHASHSEED"].isdigit():
        return None
    if rest[0] == "-c":
        if len(rest) < 2:
            return None
    elif rest[0].startswith("-") or "-P" not in flags:
        return None
    heeded = []
    for name, value in sorted(env.items()):
        if name in _HEEDED or name.startswith("LC_"):
            heeded.append((name, value))
        elif name.startswith(_FORBIDDEN_PREFIXES):
            return None
    imports = [each for each in warm_imports if any(each.trigger in word for word in rest)]
    return StartKind(flags, tuple(heeded), tuple(imports))


class Zygote:
    """One started interpreter. `ready` turns true when it answers."""

    def __init__(
        self, argv: Sequence[str], *, loop: asyncio.AbstractEventLoop, on_lost: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._callbacks: dict[int, tuple[Callable[[Reply], None], Callable[[], None]]] = {}
        self._last_id = 0
        self.ready = self.dead = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        # Standard streams are pipes, as those of its forks will be: Python looks at them once.
        given = (pipes[0][0], pipes[1][1], pipes[2][1])
        try:
            self.pid = os.posix_spawn(
                argv[0],
                list(argv),
                {},
                file_actions=[
                    *((os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(given)),
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), protocol.CONTROL_FD),
                ],
            )
        finally:
            theirs.close()
            for fd in (fd for pipe in pipes for fd in pipe):
                os.close(fd)
        ours.setblocking(False)
        self._control = ours
        loop.add_reader(ours.fileno(), self._on_control)

    @property
    def idle(self) -> bool:
        """True when none of its forks is alive."""
        return not self._callbacks

    def fork(
        self,
        request: RunRequest,
        *,
        command: int,
        group: str,
        open_files: int,
        fds: Sequence[int],
        on_exit: Callable[[Reply], None],
        on_lost: Callable[[], None],
    ) -> bool:
        """Ask for a fork in a box; False when the zygote cannot take it now.

        `fds` are the pidfd of the box's PID 1 and the three standard descriptors.
        """
        message = protocol.fork_request(
            self._last_id + 1,
            command,
            open_files,
            group,
            (request.cwd, request.argv, request.env),
        )
        rights = array.array("i", fds)
        try:
            self._control.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError:
            return False
        self._last_id += 1
        self._callbacks[self._last_id] = (on_exit, on_lost)
        return True

    def _on_control(self) -> None:
        try:
            message = self._control.recv(256)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        reply = protocol.parse_reply(message)
        if reply is None:
            self._die()
        elif reply.op == protocol.HELLO:
            self.ready = reply.id == protocol.VERSION
        elif reply.id in self._callbacks:
            self._callbacks.pop(reply.id)[0](reply)

    def _die(self) -> None:
        self.ready, self.dead = False, True
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        callbacks, self._callbacks = self._callbacks, {}
        for _, on_lost in callbacks.values():
            on_lost()
        self._on_lost()

    def _reap(self) -> bool:
        return os.waitpid(self.pid, os.WNOHANG)[0] != 0

    async def close(self) -> None:
        """End the process and reap it."""
        if not self.dead:
            self.dead = True
            self._loop.remove_reader(self._control.fileno())
            self._control.close()  # end of file: it leaves
        deadline_s = self._loop.time() + _STOP_TIMEOUT_S
        while True:
            with contextlib.suppress(ChildProcessError):
                if not self._reap():
                    if self._loop.time() > deadline_s:
                        os.kill(self.pid, 9)
                    await asyncio.sleep(0.002)
                    continue
            return


@functools.cache
def _start_up_code(imports: tuple[WarmImport, ...]) -> str:
    """The start-up code, kept out of ``__main__``, which belongs to the program."""
    source = Path(__file__).with_name("zygote_boot.py").read_text()
    wanted = tuple((name, each.directory) for each in imports for name in each.modules)
    namespace = {"__name__": "zygote", "IMPORTS": wanted}
    return f"exec(compile({source!r}, '<zygote>', 'exec'), {namespace!r})"


class Zygotes:
    """The zygotes of one host: started when a kind is first asked for, the rarest let go."""

    def __init__(
        self,
        launcher_argv: Callable[[Sequence[str]], Sequence[str]],
        warm_imports: Sequence[WarmImport],
    ) -> None:
        self._launcher_argv = launcher_argv
        self._warm_imports = tuple(warm_imports)
        self._zygotes: OrderedDict[StartKind, Zygote] = OrderedDict()
        self._num_failures = 0
        self._leaving: set[asyncio.Task[None]] = set()

    def find(self, argv: Sequence[str], env: Mapping[str, str]) -> Zygote | None:
        """A ready zygote for this command; None when there is none, or not yet."""
        kind = start_kind(argv, env, self._warm_imports)
        if kind is None:
            return None
        zygote = self._zygotes.get(kind)
        if zygote is None:
            self._start(kind)
            return None
        self._zygotes.move_to_end(kind)
        return zygote if zygote.ready else None

    def pids(self) -> list[int]:
        return [zygote.pid for zygote in self._zygotes.values()]

    def _start(self, kind: StartKind) -> None:
        if self._num_failures >= MAX_FAILURES:
            return
        if len(self._zygotes) >= MAX_ZYGOTES and not self._let_one_go():
            return
        loop = asyncio.get_running_loop()
        environ = [word for pair in kind.environ for word in ("--env", "=".join(pair))]
        code = _start_up_code(kind.imports)
        argv = self._launcher_argv([*environ, "--", PYTHON, *kind.flags, "-c", code])
        self._zygotes[kind] = Zygote(argv, loop=loop, on_lost=lambda: self._lost(kind))

    def _let_one_go(self) -> bool:
        """The one not used for longest, unless every one has forks alive."""
        for kind, zygote in self._zygotes.items():
            if zygote.idle:
                del self._zygotes[kind]
                self._leave(zygote)
                return True
        return False

    def _lost(self, kind: StartKind) -> None:
        self._num_failures += 1
        zygote = self._zygotes.pop(kind, None)
        if zygote is not None:
            self._leave(zygote)

    def _leave(self, zygote: Zygote) -> None:
        task = asyncio.get_running_loop().create_task(zygote.close())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        for zygote in self._zygotes.values():
            self._leave(zygote)
        self._zygotes.clear()
        while self._leaving:
            await asyncio.wait(set(self._leaving))
