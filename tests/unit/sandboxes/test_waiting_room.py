"""Whoever waits for room and gives up, however and whenever, is forgotten whole."""

import asyncio

import pytest

from trialyard.core.errors import ResourceExhausted
from trialyard.sandboxes.admission import Admission, Claim
from trialyard.sandboxes.waiting_room import WaitingRoom


def claim(owner: str) -> Claim:
    return Claim(owner, 1, 0, 0)


async def test_a_claim_that_is_cancelled_as_its_time_runs_out_is_never_admitted() -> None:
    admission = Admission(1)
    room = WaitingRoom(admission, lambda *_: None)
    await room.enter(claim("first"), 1)
    waiting = asyncio.create_task(room.enter(claim("second"), 60))
    await asyncio.sleep(0)
    [ticket] = room._admitted
    waiting.cancel()
    room._refuse(ticket, 60)  # its timer, before the cancelled task has run
    room.leave(claim("first"))
    assert (admission.boxes, len(room)) == (0, 0)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await room.enter(claim("third"), 0)
    assert admission.boxes == 1


async def test_a_claim_whose_time_ran_out_is_refused_and_forgotten() -> None:
    admission = Admission(1)
    room = WaitingRoom(admission, lambda *_: None)
    await room.enter(claim("first"), 1)
    with pytest.raises(ResourceExhausted, match="no room"):
        await room.enter(claim("second"), 0.001)
    room.leave(claim("first"))
    assert (admission.boxes, len(room)) == (0, 0)
