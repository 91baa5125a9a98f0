"""What the reference solution of a task hands in.

Reference files are handed in as they are. Where Harbor's ``solution/solve.sh`` is, it is
run in a box of its own, and what it changed below the workdir is the submission.
"""

from trialyard.core.errors import TaskError
from trialyard.core.grader import Submission
from trialyard.core.ids import new_id
from trialyard.core.sandbox import SandboxPool
from trialyard.core.task import Task

SOLVE_SCRIPT = "solve.sh"
SOLUTION_DIRECTORY = "/solution"


async def reference_submission(pool: SandboxPool, task: Task) -> Submission:
    """The reference's submission. Raises `TaskError` when there is none or it fails."""
    if not task.solution:
        raise TaskError(f"task {task.id} has no reference solution (solution/ is empty)")
    if SOLVE_SCRIPT not in task.solution:
        return Submission(dict(task.solution))
    spec = task.spec
    async with pool.acquire(
        image=spec.image, limits=spec.limits, owner=new_id("reference"), workdir=spec.workdir
    ) as box:
        await box.upload(task.environment, directory=box.workdir)
        await box.upload(task.solution, directory=SOLUTION_DIRECTORY)
        before = await box.download(box.workdir)
        script = f"{SOLUTION_DIRECTORY}/{SOLVE_SCRIPT}"
        result = await box.run(["bash", script], timeout_s=spec.agent.timeout_s)
        if not result.ok:
            said = result.stderr[-200:].decode("utf-8", "replace").strip()
            raise TaskError(
                f"task {task.id}: solution/{SOLVE_SCRIPT} ended with {result.status.value} "
                f"{result.exit_code}: {said}"
            )
        after = await box.download(box.workdir)
    files: dict[str, bytes | None] = {
        path: data for path, data in after.items() if before.get(path) != data
    }
    return Submission(files | {path: None for path in before if path not in after})
