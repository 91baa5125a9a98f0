"""A rollout: one policy on one task, with new attempts when the machine failed.

Invariant: what the machine did never becomes a reward. A box lost with evidence from
its host, or any other fault of the environment, starts a new attempt; attempts used
up give an ungraded trajectory. A box lost twice without such evidence is the model's
doing and is graded 0, or crashing the box would be a way out of a zero (DESIGN 4.3).
"""

from collections.abc import Callable
from dataclasses import dataclass

from trialyard.core import plain
from trialyard.core.clock import Clock
from trialyard.core.errors import PolicyError, SandboxError, SandboxLost
from trialyard.core.grader import Grader, Submission, Verdict
from trialyard.core.ids import derive_seed
from trialyard.core.policy import Policy, Sampling
from trialyard.core.sandbox import SandboxPool
from trialyard.core.task import Task
from trialyard.core.trajectory import StopReason, Trajectory, Turn
from trialyard.rollout.episode import Episode
from trialyard.rollout.tools import Tool

ToolFactory = Callable[[Task], Tool]
MAX_UNEXPLAINED_LOSSES = 1
BACKOFF_S = 0.25
ACQUIRE_TIMEOUT_S = 900.0
"""Waiting for room is no fault: the pool is the bound on what runs at once."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """What to try: identity, task, sampling settings and the seed of its randomness."""

    run: str
    group: str
    member: int
    task: Task
    sampling: Sampling
    seed: int

    @property
    def id(self) -> str:
        """Exactly-once key: the same request gives the same id in every process."""
        return f"{self.run}/{self.group}/{self.member}"


@dataclass(frozen=True, slots=True)
class _Attempt:
    turns: tuple[Turn, ...]
    stop: StopReason
    verdict: Verdict
    files: dict[str, bytes | None]


class Roller:
    """Runs rollouts; safe for any number at once."""

    def __init__(
        self,
        *,
        policy: Policy,
        pool: SandboxPool,
        grader: Grader,
        tool_for: ToolFactory,
        clock: Clock,
        max_attempts: int = 3,
    ) -> None:
        self._policy = policy
        self._pool = pool
        self._grader = grader
        self._tool_for = tool_for
        self._clock = clock
        self._max_attempts = max_attempts

    async def run(self, request: RolloutRequest) -> Trajectory:
        """One trajectory, graded or ungraded; raises only for a bug or cancellation."""
        started_s, started_wall_s = self._clock.monotonic_s(), self._clock.wall_s()
        faults: list[str] = []
        unexplained = 0
        outcome = _ungraded((), StopReason.ENVIRONMENT, "no attempt was made")
        attempt = 0
        for attempt in range(self._max_attempts):
            episode = self._episode(request, attempt)
            try:
                outcome = await self._attempt(request, episode)
                if outcome.verdict.fault != "environment":
                    break
                faults.append(f"grading: {outcome.verdict.reason}")
            except SandboxLost as error:
                faults.append(f"sandbox lost: {error} [host: {error.host_evidence or 'nothing'}]")
                outcome = _ungraded(tuple(episode.turns), StopReason.ENVIRONMENT, faults[-1])
                unexplained += not error.host_evidence
                if unexplained > MAX_UNEXPLAINED_LOSSES:
                    outcome = _lost_by_model(tuple(episode.turns), faults[-1])
                    break
            except SandboxError as error:
                faults.append(f"sandbox: {error}")
                outcome = _ungraded(tuple(episode.turns), StopReason.ENVIRONMENT, faults[-1])
            except PolicyError as error:
                faults.append(f"policy: {error}")
                outcome = _ungraded(tuple(episode.turns), StopReason.POLICY, faults[-1])
            await self._clock.sleep(BACKOFF_S * 2**attempt)
        return Trajectory(
            id=request.id,
            run=request.run,
            group=request.group,
            member=request.member,
            attempt=attempt,
            task_id=request.task.id,
            task_hash=request.task.hash,
            image_digest=self._pool.image_digest(request.task.spec.image),
            seed=request.seed,
            turns=outcome.turns,
            stop=outcome.stop,
            verdict=outcome.verdict,
            diff=plain.dumps(outcome.files).encode(),
            faults=tuple(faults),
            penalty=request.task.spec.agent.turn_penalty * max(0, len(outcome.turns) - 1),
            started_s=started_wall_s,
            wall_s=self._clock.monotonic_s() - started_s,
        )

    def _episode(self, request: RolloutRequest, attempt: int) -> Episode:
        seed = derive_seed(request.seed, "attempt", attempt)
        sampling = request.sampling.model_copy(update={"seed": seed})
        tool = self._tool_for(request.task)
        return Episode(request.task, self._policy, tool, self._clock, sampling)

    async def _attempt(self, request: RolloutRequest, episode: Episode) -> _Attempt:
        spec = request.task.spec
        async with self._pool.acquire(
            image=spec.image,
            limits=spec.limits,
            owner=request.id,
            workdir=spec.workdir,
            timeout_s=ACQUIRE_TIMEOUT_S,
        ) as sandbox:
            if request.task.environment:
                await sandbox.upload(request.task.environment, directory=spec.workdir)
            stop = await episode.run(sandbox)
            files = await episode.tool.submission(request.task, sandbox)
        answer = episode.turns[-1].output if episode.turns else ""
        submission = Submission(files=files, final_answer=answer, trajectory=request.id)
        verdict = await self._grader.grade(request.task, submission, seed=request.task.spec.seed)
        return _Attempt(tuple(episode.turns), stop, verdict, files)


def _ungraded(turns: tuple[Turn, ...], stop: StopReason, reason: str) -> _Attempt:
    verdict = Verdict(status="ungraded", fault="environment", trust="separated", reason=reason)
    return _Attempt(turns, stop, verdict, {})


def _lost_by_model(turns: tuple[Turn, ...], reason: str) -> _Attempt:
    verdict = Verdict(
        status="graded",
        fault="model",
        trust="separated",
        reward=0.0,
        reason=f"lost twice: {reason}",
    )
    return _Attempt(turns, StopReason.ENVIRONMENT, verdict, {})
