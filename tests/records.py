"""Small records for tests: trajectories and groups with only what a test is about."""

from collections.abc import Sequence

from trialyard.core.grader import Verdict
from trialyard.core.policy import VersionSpan
from trialyard.core.trajectory import Group, StopReason, Trajectory, Turn


def verdict_of(reward: float | None) -> Verdict:
    if reward is None:
        return Verdict(status="ungraded", fault="environment", trust="separated", reason="test")
    return Verdict(
        status="graded", fault="none", trust="separated", reward=reward, passed=reward >= 1.0
    )


def trajectory_of(
    id: str, *, group: str = "train/0000000", member: int = 0, reward: float | None = 1.0,
    version: int = 0,
) -> Trajectory:  # fmt: skip
    turn = Turn(
        context="do it",
        context_ids=(1, 2),
        output="done",
        output_ids=(3, 4),
        logprobs=(-0.5, -0.25),
        versions=(VersionSpan(version, 2),),
        finish="stop",
    )
    return Trajectory(
        id=id,
        run="test",
        group=group,
        member=member,
        attempt=0,
        task_id="t/1",
        task_hash="h",
        image_digest="d",
        seed=0,
        turns=(turn,),
        stop=StopReason.SOLVED,
        verdict=verdict_of(reward),
    )


def group_of(
    index: int, *, version: int = 0, rewards: Sequence[float | None] = (1.0, 0.0)
) -> Group:
    name = f"train/{index:07d}"
    members = tuple(
        trajectory_of(f"test/{name}/{i}", group=name, member=i, reward=reward, version=version)
        for i, reward in enumerate(rewards)
    )
    return Group(name, "t/1", "h", members)
