"""Places for boxes that exist, in use or not: one is taken before a box starts and is free
again when the box is gone. Who waits for one is served in order and only for as long as some
box takes to die.
"""

import asyncio
from collections import deque


class Places:
    """A counted number of places, in one event loop."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.taken = 0

    @property
    def are_wanted(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiters)

    def try_take(self) -> bool:
        if self.taken >= self._count or self._waiters:
            return False
        self.taken += 1
        return True

    async def take(self) -> None:
        if self.try_take():
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.free()
            raise

    def free(self) -> None:
        """A place is free: it goes to the first who waits for it."""
        while self._waiters:
            place = self._waiters.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.taken -= 1
