"""What a perfect agent would say on a task: its reference solution in the tool's protocol."""

from trialyard.core.errors import TaskError
from trialyard.core.task import Task


def reference_outputs(task: Task) -> list[str]:
    """Completions that hand in the reference solution. Raises `TaskError` if there is none."""
    if not task.solution:
        raise TaskError(f"task {task.id} has no reference solution (solution/ is empty)")
    if task.spec.agent.tool == "answer":
        return [_answer(task)]
    return [_script(task)]


def _answer(task: Task) -> str:
    spec = task.spec.agent
    if spec.answer_file not in task.solution:
        raise TaskError(f"task {task.id}: solution/{spec.answer_file} is missing")
    text = task.solution[spec.answer_file].decode("utf-8")
    if not text.startswith(spec.answer_prefix):
        raise TaskError(
            f"task {task.id}: solution/{spec.answer_file} must begin with agent.answer_prefix"
        )
    return text.removeprefix(spec.answer_prefix)


def _script(task: Task) -> str:
    files = {path: data for path, data in task.solution.items() if path != "solve.sh"}
    blocks = [
        f"```file {path}\n{data.decode('utf-8', 'surrogateescape')}```"
        for path, data in files.items()
    ]
    if script := task.solution.get("solve.sh"):
        blocks.append(f"```bash\n{script.decode('utf-8')}\n```")
    return "\n".join([*blocks, "```submit\n```"])
