"""The verdict cache: one run for one answer, and nothing remembered that is not known."""

import asyncio

import pytest

from trialyard.core.errors import NotFoundError
from trialyard.core.grader import Submission, Verdict
from trialyard.core.task import Task, TaskSpec
from trialyard.graders.cache import CachedGrader

TASK = Task(TaskSpec(id="t", instruction=""))
GRADED = Verdict(status="graded", fault="none", trust="separated", reward=0.5)
UNGRADED = Verdict(status="ungraded", fault="environment", trust="separated")


class CountingGrader:
    def __init__(self, verdict: Verdict = GRADED) -> None:
        self.verdict, self.runs, self.cancelled = verdict, 0, 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def grade(self, task: Task, submission: Submission, *, seed: int = 0) -> Verdict:
        self.runs += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.verdict


def cached(inner: CountingGrader, **options: int) -> CachedGrader:
    return CachedGrader(
        inner, image_digest=lambda image: f"digest of {image}", version="1", **options
    )


async def test_an_equal_answer_is_graded_once() -> None:
    inner = CountingGrader()
    grader = cached(inner)
    answers = [Submission({"a": b"1"}), Submission({"a": b"1"}, trajectory="other")]
    assert [await grader.grade(TASK, answer) for answer in answers] == [GRADED, GRADED]
    assert (inner.runs, grader.hits) == (1, 1)


async def test_everything_that_can_change_the_verdict_tells_answers_apart() -> None:
    inner = CountingGrader()
    grader = cached(inner)
    other_task = Task(TaskSpec(id="t", instruction="", image="other"))
    await grader.grade(TASK, Submission({"a": b"1"}))
    await grader.grade(TASK, Submission({"a": b"2"}))
    await grader.grade(TASK, Submission({"a": None}))
    await grader.grade(TASK, Submission({"a": b"1"}, final_answer="x"))
    await grader.grade(TASK, Submission({"a": b"1"}), seed=1)
    await grader.grade(other_task, Submission({"a": b"1"}))
    assert inner.runs == 6


async def test_answers_that_arrive_together_share_one_run() -> None:
    inner = CountingGrader()
    inner.gate.clear()
    grader = cached(inner)
    waiting = [asyncio.create_task(grader.grade(TASK, Submission())) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    inner.gate.set()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert done[1:] == [GRADED] * 4
    assert inner.runs == 1


async def test_a_run_that_nobody_waits_for_is_cancelled() -> None:
    inner = CountingGrader()
    inner.gate.clear()
    grader = cached(inner)
    waiting = [asyncio.create_task(grader.grade(TASK, Submission())) for _ in range(2)]
    await asyncio.sleep(0)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.sleep(0)
    assert inner.cancelled == 1
    inner.gate.set()
    assert await grader.grade(TASK, Submission()) == GRADED


async def test_an_ungraded_verdict_is_not_remembered() -> None:
    inner = CountingGrader(UNGRADED)
    grader = cached(inner)
    await grader.grade(TASK, Submission())
    inner.verdict = GRADED
    assert await grader.grade(TASK, Submission()) == GRADED


async def test_the_memory_is_bounded_and_forgets_the_longest_unused() -> None:
    inner = CountingGrader()
    grader = cached(inner, max_verdicts=2)
    answers = [Submission({"a": bytes([i])}) for i in range(3)]
    await grader.grade(TASK, answers[0])
    await grader.grade(TASK, answers[1])
    await grader.grade(TASK, answers[0])
    await grader.grade(TASK, answers[2])
    assert inner.runs == 3
    await grader.grade(TASK, answers[0])
    assert inner.runs == 3
    await grader.grade(TASK, answers[1])
    assert inner.runs == 4


async def test_a_missing_image_is_for_the_grader_to_judge() -> None:
    def no_image(image: str) -> str:
        raise NotFoundError(image)

    inner = CountingGrader(UNGRADED)
    grader = CachedGrader(inner, image_digest=no_image, version="1")
    assert await grader.grade(TASK, Submission()) == UNGRADED


async def test_a_run_that_raises_raises_for_all_and_is_not_remembered() -> None:
    class BrokenGrader(CountingGrader):
        async def grade(self, task: Task, submission: Submission, *, seed: int = 0) -> Verdict:
            await asyncio.sleep(0)
            raise RuntimeError("a bug")

    grader = cached(BrokenGrader())
    done = await asyncio.gather(
        *(grader.grade(TASK, Submission()) for _ in range(3)), return_exceptions=True
    )
    assert [type(error) for error in done] == [RuntimeError] * 3
    with pytest.raises(RuntimeError):
        await grader.grade(TASK, Submission())
