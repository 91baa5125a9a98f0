"""What one box changed, on its way into a snapshot."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from trialyard.core.image import Image
from trialyard.core.sandbox import Limits
from trialyard.sandboxes.blocking import in_thread
from trialyard.sandboxes.cgroups import BoxCgroup
from trialyard.sandboxes.freeze import frozen
from trialyard.sandboxes.layer_walk import LayerLimits, LayerWalk
from trialyard.sandboxes.plan import OWN_INODES
from trialyard.sandboxes.snapshots import SnapshotStore
from trialyard.sandboxes.system_files import BOX_UID

NOBODY = 65534


@dataclass(frozen=True, slots=True)
class BoxContent:
    """The writable layer of a box. `layer_fd` is closed by `save`.

    All of it is the box's own: the supervisor reads it as root, so that files that shut
    out their own user are kept too, but never crosses into another mount.
    """

    layer_fd: int
    image: Image
    provided: frozenset[bytes]
    limits: Limits
    uids: range
    """The host ids of the box."""
    cgroup: BoxCgroup

    async def save(self, store: SnapshotStore, owner: str, *, keep: bool) -> str:
        """Name of the snapshot, held once. The box stands still meanwhile."""

        def capture(go_on: Callable[[], None]) -> str:
            try:
                with frozen(self.cgroup):
                    return store.capture(
                        self._walk(), self.image, owner=owner, keep=keep, go_on=go_on
                    )
            finally:
                os.close(self.layer_fd)

        return await in_thread(capture, undo=store.release)

    def _walk(self) -> LayerWalk:
        limits = LayerLimits(self.limits.disk_bytes, self.limits.inodes + OWN_INODES)
        return LayerWalk(
            self.layer_fd, self._inside_id, limits, self.provided, bool(self.image.lowers)
        )

    def _inside_id(self, id: int) -> int:
        if id in self.uids:
            return id - self.uids.start if len(self.uids) > 1 else BOX_UID
        return 0 if id == 0 else NOBODY
