"""Where claims wait until the pool has room for them (admission.py says who is next).

Whoever is refused, cancelled or woken by the closing of the pool, at whatever moment, holds
nothing afterwards.
"""

import asyncio
from collections.abc import Callable

from trialyard.core.errors import ResourceExhausted
from trialyard.sandboxes.admission import Admission, Claim, Ticket

CLOSED = "the sandbox pool is closed"


class WaitingRoom:
    """The queue of one pool, in one event loop."""

    def __init__(self, admission: Admission, on_refused: Callable[[Claim, float], None]) -> None:
        self._admission = admission
        self._on_refused = on_refused
        self._admitted: dict[Ticket, asyncio.Future[None]] = {}
        """Tickets that wait -> resolved when admitted."""
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._admission)

    async def enter(self, claim: Claim, timeout_s: float) -> None:
        """Wait for admission; `leave` gives it back. Raises `ResourceExhausted`."""
        if self._is_closed:
            raise ResourceExhausted(CLOSED)
        loop = asyncio.get_running_loop()
        ticket = self._admission.enqueue(claim, loop.time())
        admitted = self._admitted[ticket] = loop.create_future()
        self._admit()
        if admitted.done():
            return
        timer = loop.call_later(timeout_s, self._refuse, ticket, timeout_s)
        if timeout_s <= 0:
            self._refuse(ticket, timeout_s)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled() and admitted.exception() is None:
                self._admission.release(claim)  # admitted and cancelled in the same moment
            self._admission.withdraw(ticket)
            self._admitted.pop(ticket, None)
            self._admit()
            raise
        finally:
            timer.cancel()

    def leave(self, claim: Claim) -> None:
        """Give an admitted claim back."""
        self._admission.release(claim)
        self._admit()

    def close(self) -> None:
        """Refuse all that wait, and all that come."""
        self._is_closed = True
        for ticket, admitted in self._admitted.items():
            self._admission.withdraw(ticket)
            if not admitted.done():
                admitted.set_exception(ResourceExhausted(CLOSED))
        self._admitted.clear()

    def _admit(self) -> None:
        """Let in whoever is next, as far as there is room."""
        now_s = asyncio.get_running_loop().time()
        while (ticket := self._admission.admit(now_s)) is not None:
            admitted = self._admitted.pop(ticket)
            if admitted.done():  # cancelled, and its task has not run yet
                self._admission.release(ticket.claim)
            else:
                admitted.set_result(None)

    def _refuse(self, ticket: Ticket, timeout_s: float) -> None:
        admitted = self._admitted.pop(ticket, None)
        if admitted is None:
            return
        self._admission.withdraw(ticket)  # first: nobody may admit a ticket that we forgot
        if admitted.done():  # cancelled, and its task has not run yet
            return
        count = ticket.claim.count
        self._on_refused(ticket.claim, asyncio.get_running_loop().time() - ticket.arrived_s)
        wanted = f"{count} more boxes" if count > 1 else "another box"
        admitted.set_exception(
            ResourceExhausted(
                f"no room for {wanted} within {timeout_s} s: {self._admission.boxes} of "
                f"{self._admission.max_boxes} are in use and {len(self)} claims wait"
            )
        )
        self._admit()  # who stood behind a claim too big may fit
