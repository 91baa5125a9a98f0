"""Who may have how many boxes, and who is next. Pure data: time is passed in.

Order: bigger priority first; among equals the owner with the fewest boxes, then who came
first. Waiting raises a claim by one priority each `aging_s`, so nothing starves. Invariants:
what is admitted never exceeds the room; a claim is admitted whole or not at all; whoever is
next is never overtaken by a smaller claim that would fit, so a gang gets its turn, and no
claim holds a part of its boxes while it waits for the rest.
"""

from collections import Counter
from dataclasses import dataclass

from trialyard.core.errors import ResourceExhausted, UserError

AGING_S = 30.0


@dataclass(frozen=True, slots=True)
class Claim:
    """One request for `count` boxes at once, of `memory_bytes` in all."""

    owner: str
    count: int = 1
    memory_bytes: int = 0
    priority: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A claim that waits; each is one of a kind."""

    claim: Claim
    arrived_s: float
    number: int
    """Tickets are numbered as they come."""


class Admission:
    """The room of one pool, and the queue for it."""

    def __init__(
        self, max_boxes: int, *, max_memory_bytes: int | None = None, aging_s: float = AGING_S
    ) -> None:
        self.max_boxes = max_boxes
        self._max_memory_bytes = max_memory_bytes
        self._aging_s = aging_s
        self._boxes = 0
        self._memory_bytes = 0
        self._boxes_of: Counter[str] = Counter()
        self._lanes: dict[tuple[str, int], dict[Ticket, None]] = {}
        """(owner, priority) -> its tickets as they came: within a lane this is the order."""
        self._waiting = self._tickets = 0

    def __len__(self) -> int:
        """How many claims wait."""
        return self._waiting

    @property
    def boxes(self) -> int:
        """How many boxes are admitted now."""
        return self._boxes

    @property
    def memory_bytes(self) -> int:
        """What the boxes admitted now may use together."""
        return self._memory_bytes

    def boxes_of(self, owner: str) -> int:
        return self._boxes_of[owner]

    def check(self, claim: Claim) -> None:
        """Refuse what could never be admitted. Raises `UserError`, `ResourceExhausted`."""
        if claim.count < 1:
            raise UserError(f"count {claim.count}: must be at least 1")
        if claim.count > self.max_boxes:
            raise UserError(
                f"count {claim.count}: this pool holds at most {self.max_boxes} boxes "
                "(max_boxes); ask for fewer at once"
            )
        if self._max_memory_bytes is not None and claim.memory_bytes > self._max_memory_bytes:
            raise ResourceExhausted(
                f"memory_bytes {claim.memory_bytes}: the boxes of this pool may use at most "
                f"{self._max_memory_bytes} together (max_memory_bytes); ask for less"
            )

    def enqueue(self, claim: Claim, now_s: float) -> Ticket:
        """Let a claim wait. Raises as `check` does."""
        self.check(claim)
        self._tickets += 1
        ticket = Ticket(claim, now_s, self._tickets)
        self._lanes.setdefault((claim.owner, claim.priority), {})[ticket] = None
        self._waiting += 1
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Forget a ticket that waits; nothing happens when it does not."""
        key = (ticket.claim.owner, ticket.claim.priority)
        lane = self._lanes.get(key, {})
        if ticket not in lane:
            return
        del lane[ticket]
        self._waiting -= 1
        if not lane:
            del self._lanes[key]

    def admit(self, now_s: float) -> Ticket | None:
        """Admit who is next, if there is room for all of it; call until None."""
        if not self._lanes:
            return None
        ticket = min(
            (next(iter(lane)) for lane in self._lanes.values()),
            key=lambda ticket: self._rank(ticket, now_s),
        )
        claim = ticket.claim
        if not self._has_room(claim):
            return None
        self.withdraw(ticket)
        self._boxes += claim.count
        self._memory_bytes += claim.memory_bytes
        self._boxes_of[claim.owner] += claim.count
        return ticket

    def release(self, claim: Claim) -> None:
        """Give back an admitted claim, or a part of one with the same owner."""
        self._boxes -= claim.count
        self._memory_bytes -= claim.memory_bytes
        self._boxes_of[claim.owner] -= claim.count
        if not self._boxes_of[claim.owner]:
            del self._boxes_of[claim.owner]

    def _rank(self, ticket: Ticket, now_s: float) -> tuple[float, int, int]:
        claim = ticket.claim
        aged = (now_s - ticket.arrived_s) // self._aging_s
        return -(claim.priority + aged), self._boxes_of[claim.owner], ticket.number

    def _has_room(self, claim: Claim) -> bool:
        if self._boxes + claim.count > self.max_boxes:
            return False
        limit = self._max_memory_bytes
        return limit is None or self._memory_bytes + claim.memory_bytes <= limit
