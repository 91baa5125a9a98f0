"""Who owns boxes on this host: a locked directory, a table of boxes, uids of its own.

Invariants: a lock is held exactly as long as its owner lives (the kernel releases flock when
the process dies), so liveness needs no heartbeat; no two live owners share a uid or a range of
them; whatever a dead owner left goes when the next owner starts (reclaim.py).
"""

import os
import shutil
from collections import deque
from pathlib import Path

from trialyard.core.errors import ResourceExhausted, SandboxUnavailable
from trialyard.core.locks import lock_file
from trialyard.sandboxes.box_table import BoxTable
from trialyard.sandboxes.hierarchies import PARENT, Hierarchy
from trialyard.sandboxes.reclaim import (
    GROUPS_NAME,
    LOCK_NAME,
    TABLE_NAME,
    everybody_waits,
    reclaim_dead_owners,
    remove_unused_parents,
)

UID_BASE = 200_000
UIDS_PER_BLOCK = 512
MAX_BLOCKS = 2048
RANGE_BASE = 0x7000_0000
"""Above what container managers and subordinate ids use, below the ids that are negative to
programs that take them for signed numbers."""
IDS_PER_RANGE = 1 << 16
RANGES_PER_BLOCK = 16
MAX_RANGE_BLOCKS = 255


class IdAllocator:
    """Host ids, distinct among all live boxes of all owners. The oldest free one goes first.

    An id stands for itself or, with `ids_each`, for a range that begins with it. Ids are
    locked in blocks, each by a file of `directory` that is locked as long as its owner lives.
    """

    def __init__(
        self,
        directory: Path,
        *,
        base: int = UID_BASE,
        ids_each: int = 1,
        per_block: int = UIDS_PER_BLOCK,
        max_blocks: int = MAX_BLOCKS,
    ) -> None:
        self._directory = directory
        self._base = base
        self._ids_each = ids_each
        self._per_block = per_block
        self._max_blocks = max_blocks
        self._free: deque[int] = deque()
        self._locks: list[int] = []
        self._tried = 0

    def take(self) -> int:
        """An id that no living box has. Raises `ResourceExhausted`."""
        if not self._free:
            self._lock_block()
        return self._free.popleft()

    def give_back(self, id: int) -> None:
        """Call when the last process of the id (or of its range) is dead."""
        self._free.append(id)

    def _lock_block(self) -> None:
        while self._tried < self._max_blocks:
            block = self._tried
            self._tried += 1
            fd = lock_file(self._directory / str(block))
            if fd is not None:
                self._locks.append(fd)
                size = self._per_block * self._ids_each
                first = self._base + block * size
                self._free.extend(range(first, first + size, self._ids_each))
                return
        what = "uids" if self._ids_each == 1 else f"ranges of {self._ids_each} ids"
        raise ResourceExhausted(
            f"all {self._max_blocks * self._per_block} sandbox {what} from {self._base} are in use"
        )

    def close(self) -> None:
        for fd in self._locks:
            os.close(fd)
        self._locks.clear()
        self._free.clear()


class Owner:
    """The right to have boxes on this host, for as long as the process lives."""

    def __init__(self, root: Path, name: str, hierarchies: list[Hierarchy]) -> None:
        self.name = name
        self._hierarchies = hierarchies
        self.directory = root / "owners" / name
        try:
            for directory in (root / "owners", root / "uids", root / "ranges", root / "tree"):
                directory.mkdir(parents=True, exist_ok=True, mode=0o755)
            with everybody_waits(root):
                reclaim_dead_owners(root, hierarchies)
                self.directory.mkdir(mode=0o755)
                groups = [str(each.root / PARENT / name) for each in hierarchies]
                (self.directory / GROUPS_NAME).write_text("".join(f"{g}\n" for g in groups))
                self._lock = lock_file(self.directory / LOCK_NAME, wait=True)
                self.table = BoxTable(self.directory / TABLE_NAME)
        except OSError as error:
            raise SandboxUnavailable(
                f"cannot use {root} ({error.strerror}); it must be a directory that the "
                "supervisor may write, on a local file system"
            ) from error
        self.uids = IdAllocator(root / "uids")
        self.ranges = IdAllocator(
            root / "ranges",
            base=RANGE_BASE,
            ids_each=IDS_PER_RANGE,
            per_block=RANGES_PER_BLOCK,
            max_blocks=MAX_RANGE_BLOCKS,
        )

    def close(self) -> None:
        """Forget the owner; its boxes must be gone. Idempotent."""
        self.uids.close()
        self.ranges.close()
        self.table.close()
        with everybody_waits(self.directory.parent.parent):
            remove_unused_parents(self._hierarchies)
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
