"""A group: several rollouts of one task with the same settings, side by side."""

import asyncio
from dataclasses import replace

from trialyard.core.ids import derive_seed
from trialyard.core.trajectory import Group
from trialyard.rollout.rollout import Roller, RolloutRequest


async def run_group(roller: Roller, request: RolloutRequest, size: int) -> Group:
    """`size` rollouts of `request`'s task; member i has a seed of its own.

    Cancelling cancels every member; a member that raises (a bug) cancels the others.
    """
    async with asyncio.TaskGroup() as tasks:
        members = [
            tasks.create_task(
                roller.run(replace(request, member=i, seed=derive_seed(request.seed, "member", i)))
            )
            for i in range(size)
        ]
    trajectories = tuple(member.result() for member in members)
    return Group(request.group, request.task.id, request.task.hash, trajectories)
