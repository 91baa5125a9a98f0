"""What a command is asked to be, checked before anything is sent.

Raises `UserError` that names the field: argv, env or cwd.
"""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from trialyard.core.errors import UserError
from trialyard.sandboxes.protocol import UserIds, run_body
from trialyard.sandboxes.system_files import HOME, ROOT_HOME
from trialyard.sandboxes.users import Account, environment_of

DEFAULT_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/opt/trialyard/python/bin",
    "HOME": HOME,
    "LANG": "C.UTF-8",
}
ROOT_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:"
    "/opt/trialyard/python/bin",
    "HOME": ROOT_HOME,
}


@dataclass(frozen=True)
class RunRequest:
    """A checked command: the whole environment, an absolute cwd."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    user: UserIds | None = None
    """Whom PID 1 becomes first; None: nobody else."""

    def as_user(self, account: Account, given: Mapping[str, str] | None) -> "RunRequest":
        """The same for another user, whose name and home are in the environment if not given."""
        env = {**self.env, **environment_of(account), **(given or {})}
        return replace(self, env=env, user=account.ids)

    @cached_property
    def body(self) -> bytes:
        """The strings as PID 1 takes them."""
        return run_body(self.cwd, self.argv, self.env, self.user)


def check_request(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | None,
    workdir: str,
    box_env: Mapping[str, str] = MappingProxyType({}),
) -> RunRequest:
    """The request; a relative `cwd` counts from the workdir.

    `env` is added to the defaults and to `box_env`, the defaults of this box.
    """
    if isinstance(argv, str) or not argv or not argv[0]:
        raise UserError(f"argv {argv!r}: must be a list of words, the first a program")
    whole = DEFAULT_ENV | dict(box_env) | dict(env or {})
    directory = workdir if cwd is None else posixpath.join(workdir, cwd)
    _check_texts("argv", argv)
    _check_texts("env", [*whole, *whole.values()])
    _check_texts("cwd", [directory])
    if any("=" in name or not name for name in whole):
        raise UserError("env: a name must not be empty or hold '='")
    return RunRequest(tuple(argv), whole, directory)


def _check_texts(field: str, texts: Iterable[object]) -> None:
    for text in texts:
        if not isinstance(text, str) or "\0" in text:
            raise UserError(f"{field} {text!r}: must be text without NUL")
