"""Commands as callers ask a box for them: checked, started, waited for or handed over.

A box inherits `run`, `start` and `shell`; what else a box is does not matter here.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trialyard.core.errors import FileAccessError, UserError
from trialyard.core.process import PtySize
from trialyard.core.sandbox import ExecResult, Limits, OutputCallback
from trialyard.sandboxes.box_commands import BoxCommands
from trialyard.sandboxes.command import CommandOptions
from trialyard.sandboxes.files import BoxFiles
from trialyard.sandboxes.process import CommandProcess
from trialyard.sandboxes.request import RunRequest, check_request
from trialyard.sandboxes.shell import BoxShell, ShelledBox
from trialyard.sandboxes.shell_script import BashScript, PosixScript, ShellScript
from trialyard.sandboxes.streams import pipe_ends
from trialyard.sandboxes.users import Account
from trialyard.sandboxes.zygote import Zygotes


class CommandMethods(ABC):
    """The methods of `Sandbox` that are about commands."""

    _commands: BoxCommands
    _files: BoxFiles
    _limits: Limits
    _workdir: str

    @abstractmethod
    def _view(self) -> ShelledBox:
        """The box as its commands see it."""

    @abstractmethod
    async def _ready_for_command(self) -> None:
        """Raises `SandboxLost` when the box is gone."""

    @abstractmethod
    def _warm(self) -> Zygotes | None:
        """Interpreters whose forks may be commands of this box."""

    @abstractmethod
    def _env(self) -> Mapping[str, str]:
        """Defaults of this box."""

    @abstractmethod
    def _account(self, user: str | int) -> Account | None:
        """Whom a command becomes for this user; None: nobody else. Raises `UserError`."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout_s: float | None = None,
        on_output: OutputCallback | None = None,
    ) -> ExecResult:
        request = await self._request(argv, env, cwd, user)
        options = self._options(stdin, timeout_s, on_output)
        ends = pipe_ends(with_stdin=bool(stdin))
        command = await self._commands.start(request, ends, options, warm=self._warm())
        return await self._commands.finish(command)

    async def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout_s: float | None = None,
        pty: PtySize | None = None,
        on_output: OutputCallback | None = None,
    ) -> CommandProcess:
        request = await self._request(argv, env, cwd, user)
        stays_open = stdin is None or pty is not None
        options = replace(
            self._options(stdin or b"", timeout_s, on_output), stdin_stays_open=stays_open
        )
        if pty is None:
            ends = pipe_ends(with_stdin=stays_open or bool(stdin))
        else:
            ends = self._files.open_terminal(pty)
        command = await self._commands.start(request, ends, options)
        return CommandProcess(command, self._commands, on_terminal=pty is not None)

    async def shell(
        self,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        pty: PtySize | None = None,
    ) -> BoxShell:
        request = await self._request(("bash",), env, cwd, user)
        script = self._shell_script(request.env.get("PATH", ""))
        ends = pipe_ends(with_stdin=False) if pty is None else self._files.open_terminal(pty)
        return await BoxShell.open(self._view(), self._commands, script, request, ends)

    def _shell_script(self, path: str) -> ShellScript:
        """bash, or else sh; numbers high up, where scripts do not open their files."""
        for directory in path.split(":"):
            with contextlib.suppress(FileAccessError, UserError):
                if self._files.stat(f"{directory}/bash").kind in ("file", "link"):
                    return BashScript(min(250, self._limits.open_files) - 8)
        return PosixScript()

    async def _request(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str | None,
        user: str | int | None,
    ) -> RunRequest:
        """The checked request, in a box that is there and on its network."""
        request = check_request(argv, env, cwd, self._workdir, self._env())
        await self._ready_for_command()
        if cwd is not None:
            self._check_cwd(request.cwd)
        account = self._account(user) if user is not None else None
        return request.as_user(account, env) if account else request

    def _options(
        self, stdin: bytes, timeout_s: float | None, on_output: OutputCallback | None
    ) -> CommandOptions:
        if timeout_s is not None and not timeout_s > 0:
            raise UserError(f"timeout_s {timeout_s!r}: must be positive")
        limits = self._limits
        return CommandOptions(
            stdin=stdin,
            timeout_s=timeout_s,
            idle_s=limits.idle_s,
            output_bytes=limits.output_bytes,
            on_output=on_output,
        )

    def _check_cwd(self, directory: str) -> None:
        """A cwd must be a directory inside; /proc/self/fd/N and the like are none."""
        if directory.startswith("/proc") or self._files.stat(directory).kind not in (
            "directory",
            "link",
        ):
            raise UserError(f"cwd {directory!r}: must be a directory in the box")
