"""`FunctionGrader`: a `Grader` without boxes, for tests of whatever uses one.

It keeps the promises of the protocol (identity in every verdict, no exception for a
submission) and judges by a function of yours; None stands for a broken machine.
"""

from collections.abc import Callable

from trialyard.core.grader import Submission, Verdict
from trialyard.core.task import Task

Judge = Callable[[Task, Submission], float | None]


def equals_solution(task: Task, submission: Submission) -> float:
    """1 when every file of the reference solution was handed in unchanged, else 0."""
    return float(all(submission.files.get(path) == data for path, data in task.solution.items()))


class FunctionGrader:
    """Rewards are `judge(task, submission)`; `graded` lists what was asked, in order."""

    def __init__(self, judge: Judge = equals_solution, *, image_digest: str = "fake") -> None:
        self._judge = judge
        self._image_digest = image_digest
        self.graded: list[tuple[Task, Submission, int]] = []

    async def grade(self, task: Task, submission: Submission, *, seed: int = 0) -> Verdict:
        """A verdict with the reward of the function, or ``ungraded`` for None."""
        self.graded.append((task, submission, seed))
        reward = self._judge(task, submission)
        return Verdict(
            status="ungraded" if reward is None else "graded",
            fault="environment" if reward is None else "none",
            trust="separated",
            reward=reward,
            passed=reward == 1.0,
            reason="the judge gave no reward" if reward is None else "",
            task_hash=task.hash,
            image_digest=self._image_digest,
            grader_version="fake",
            seed=seed,
        )
