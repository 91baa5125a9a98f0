"""Work that blocks, in a thread, so that the event loop goes on.

Whatever happens to the caller, the work ends before the call returns: descriptors that it uses
may be closed afterwards.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


class Stopped(Exception):
    """Raised inside work whose caller was cancelled."""


async def in_thread(
    work: Callable[[Callable[[], None]], _T], *, undo: Callable[[_T], object] | None = None
) -> _T:
    """Call `work(go_on)` in a thread; `go_on` raises when the caller was cancelled.

    `undo` gets the result that a cancelled caller will never see.
    """
    stop = threading.Event()

    def go_on() -> None:
        if stop.is_set():
            raise Stopped

    future = asyncio.get_running_loop().run_in_executor(None, work, go_on)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.set()
        while not future.done():
            await _wait_for_end(future)
        if future.exception() is None and undo is not None:
            undo(future.result())
        raise


async def _wait_for_end(future: asyncio.Future[_T]) -> None:
    """Another cancellation changes nothing: the first one goes on when the work ended."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait({future})
