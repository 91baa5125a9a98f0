"""The ``answer`` tool: each completion is the whole answer file; visible checks reply."""

from trialyard.core.feedback import compact_feedback, full_feedback
from trialyard.core.outcome import CaseOutcome
from trialyard.core.sandbox import Sandbox
from trialyard.core.task import Task
from trialyard.rollout.tools import CheckRunner, Observation

FENCE = "```"


class AnswerTool:
    """Writes `answer_prefix` + completion to `answer_file` and runs the visible checks."""

    def __init__(self, run_check: CheckRunner) -> None:
        self._run_check = run_check
        self._answer: bytes | None = None

    def opening(self, task: Task) -> str:
        """The instruction alone: a tiny policy learns the form from demonstrations."""
        return task.spec.instruction

    async def act(self, task: Task, sandbox: Sandbox, output: str) -> Observation:
        """Done once every visible check passes; without visible checks, after one answer."""
        spec = task.spec.agent
        self._answer = (spec.answer_prefix + code_of(output)).encode("utf-8", "surrogatepass")
        await sandbox.write(spec.answer_file, self._answer)
        outcomes: list[CaseOutcome] = []
        for check in task.visible_checks:
            outcomes += await self._run_check(task, check, sandbox)
        if all(outcome.status == "passed" for outcome in outcomes):
            return Observation("all visible checks passed", done=True)
        render = compact_feedback if spec.feedback == "compact" else full_feedback
        return Observation(render(outcomes))

    async def submission(self, task: Task, sandbox: Sandbox) -> dict[str, bytes | None]:
        """The answer file as last written."""
        if self._answer is None:
            return {}
        return {task.spec.agent.answer_file: self._answer}


def code_of(output: str) -> str:
    """The last fenced block of a completion, or all of it when nothing is fenced."""
    if FENCE not in output:
        return output
    parts = output.split(FENCE)
    block = parts[-2] if len(parts) % 2 else parts[-1]
    first, newline, rest = block.partition("\n")
    return rest if newline and (not first.strip() or first.strip().isalnum()) else block
