"""Every error that crosses a boundary of trialyard, in one tree.

The type says which boundary failed; the message says what was wrong, where, and
what to do about it. Two rules keep rewards honest:

- a command that fails is a result (`ExecResult`), never an exception;
- a box that vanished is an exception (`SandboxLost`), never a result.

TrialyardError
├── UserError            bad input; the CLI exits with 2
│   ├── ConfigError      configuration file or flag
│   ├── TaskError        task directory or record (a fault of the task)
│   └── NotFoundError    a run, task or image that does not exist
├── SandboxError         the environment's fault unless stated
│   ├── SandboxLost      the box vanished
│   ├── SandboxUnavailable  this host cannot run the backend safely
│   ├── LimitUnsupported    the host cannot enforce a limit
│   ├── ResourceExhausted   no room now
│   ├── FileAccessError  a path inside the box could not be read or written
│   ├── SnapshotRefused  a box holds what no snapshot can, or more than one may
│   ├── ShellEnded       a shell session exited, was replaced or was killed
│   └── StdinClosed      bytes for a process that takes none any more
├── PolicyError          the policy could not answer
│   └── ContextOverflow  prompt and budget do not fit the context window
├── GraderError          grading itself broke
├── StoreError           durable state: ledger, blobs, trajectories, weights
│   └── StaleEpoch       a result from an old lease
└── LearnerError         a step that must not reach the weights
"""


class TrialyardError(Exception):
    """Root of all errors raised on purpose by trialyard."""


class UserError(TrialyardError):
    """Bad input by a person or a program; the message names the field and the fix."""


class ConfigError(UserError, ValueError):
    """A configuration file or flag is wrong."""


class TaskError(UserError, ValueError):
    """A task directory or record is wrong: the fault is the task's."""


class NotFoundError(UserError, LookupError):
    """A run, task, image or policy of that name does not exist."""


class SandboxError(TrialyardError):
    """Something about a sandbox failed that is not the program inside it."""


class SandboxLost(SandboxError):
    """The box vanished while it was in use.

    `host_evidence` says what the supervisor saw on its host (killed from outside,
    out of memory or disk). Empty means that nothing but the box itself explains it.
    """

    def __init__(self, message: str, *, host_evidence: str = "") -> None:
        super().__init__(message)
        self.host_evidence = host_evidence


class SandboxUnavailable(SandboxError, UserError):
    """This host cannot run the sandbox backend safely; nothing was run."""


class LimitUnsupported(SandboxError, UserError):
    """The host cannot enforce a limit that was asked for."""


class ResourceExhausted(SandboxError):
    """No capacity now; try again later or with less."""


class FileAccessError(SandboxError, OSError):
    """A file operation inside a box was refused or failed."""


class SnapshotRefused(SandboxError):
    """A box holds what no snapshot can, or more than one may; the message names the limit."""


class ShellEnded(SandboxError):
    """A shell session is over; `exit_code` or `signal` say how its process ended.

    `stdout` and `stderr` are the output of the command that was running then.
    """

    def __init__(
        self,
        message: str,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        stdout: bytes = b"",
        stderr: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal
        self.stdout = stdout
        self.stderr = stderr


class StdinClosed(SandboxError, UserError):
    """Bytes for a process whose stdin was not asked for, was closed, or that nobody reads."""


class PolicyError(TrialyardError):
    """The policy gave no usable answer (server down, bad reply)."""


class ContextOverflow(PolicyError):
    """The conversation no longer fits into the policy's context window."""


class GraderError(TrialyardError):
    """Grading itself broke; the verdict is ungraded, fault environment."""


class StoreError(TrialyardError):
    """Durable state could not be read or written."""


class StaleEpoch(StoreError):
    """A result arrived under a lease that somebody else holds by now."""


class LearnerError(TrialyardError):
    """An optimiser step was refused because its numbers were not sound."""
