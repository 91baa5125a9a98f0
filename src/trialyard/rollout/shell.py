"""The ``shell`` tool: fenced blocks run commands, write files, or submit."""

import re
from dataclasses import dataclass

from trialyard.core.errors import FileAccessError, UserError
from trialyard.core.sandbox import ExecResult, Sandbox
from trialyard.core.task import Task
from trialyard.core.trajectory import CommandRecord
from trialyard.rollout.tools import Observation

OBSERVATION_CHARS = 8000
RECORD_BYTES = 64 << 10
COMMAND_TIMEOUT_S = 120.0

PROTOCOL = """
Work in the folder {workdir}. In each message write one fenced block:
```bash
a command, run with bash in {workdir}
```
or, to write a whole file,
```file PATH
its content
```
or, when the work is done,
```submit
```
The output of the command comes back as the next message.
"""

_BLOCK = re.compile(r"^```(bash|sh|file|submit)[ \t]*([^\n]*)\n(.*?)^```[ \t]*$", re.S | re.M)


@dataclass(frozen=True, slots=True)
class Action:
    """One parsed block of a completion."""

    kind: str
    argument: str
    body: str


def parse_actions(output: str) -> list[Action]:
    """Fenced blocks of a completion, in order; text outside of them is thought."""
    return [
        Action("bash" if kind == "sh" else kind, argument.strip(), body)
        for kind, argument, body in _BLOCK.findall(
            output if output.endswith("\n") else output + "\n"
        )
    ]


class ShellTool:
    """Runs the blocks of a completion one after the other."""

    def opening(self, task: Task) -> str:
        return task.spec.instruction + "\n" + PROTOCOL.format(workdir=task.spec.workdir)

    async def act(self, task: Task, sandbox: Sandbox, output: str) -> Observation:
        texts: list[str] = []
        commands: list[CommandRecord] = []
        for action in parse_actions(output):
            if action.kind == "submit":
                return Observation("submitted", done=True, commands=tuple(commands))
            if action.kind == "file":
                texts.append(await _write(sandbox, action))
                continue
            argv = ("bash", "-c", action.body)
            result = await sandbox.run(argv, timeout_s=COMMAND_TIMEOUT_S)
            commands.append(command_record(argv, result))
            texts.append(observation_text(result))
        if not texts:
            texts.append("No fenced block was found. Write ```bash, ```file PATH or ```submit.")
        return Observation("\n".join(texts), commands=tuple(commands))

    async def submission(self, task: Task, sandbox: Sandbox) -> dict[str, bytes | None]:
        """The difference between the workdir now and the task's environment."""
        now = await sandbox.download(task.spec.workdir)
        changes: dict[str, bytes | None] = {
            path: data for path, data in now.items() if task.environment.get(path) != data
        }
        changes.update({path: None for path in task.environment if path not in now})
        return changes


async def _write(sandbox: Sandbox, action: Action) -> str:
    try:
        await sandbox.write(action.argument, action.body.encode("utf-8", "surrogatepass"))
    except (FileAccessError, UserError) as error:
        return f"could not write {action.argument!r}: {error}"
    return f"wrote {action.argument}"


def command_record(argv: tuple[str, ...], result: ExecResult) -> CommandRecord:
    """What the trajectory keeps of a command."""
    return CommandRecord(
        argv=argv,
        status=result.status.value,
        exit_code=result.exit_code,
        wall_s=result.usage.wall_s,
        stdout=result.stdout[:RECORD_BYTES],
        stderr=result.stderr[:RECORD_BYTES],
    )


def observation_text(result: ExecResult) -> str:
    """What the policy sees of a command: status, then head and tail of the output."""
    body = (result.stdout + result.stderr).decode("utf-8", "replace")
    if len(body) > OBSERVATION_CHARS:
        half = OBSERVATION_CHARS // 2
        cut = len(body) - OBSERVATION_CHARS
        body = f"{body[:half]}\n[{cut} characters left out]\n{body[-half:]}"
    status = result.status.value
    if result.exit_code is not None:
        status = f"{status} {result.exit_code}"
    hit = f" (limits hit: {', '.join(sorted(result.limits_hit))})" if result.limits_hit else ""
    return f"[{status}{hit}]\n{body}"
