"""Unused boxes that wait ready, by kind; the kind used longest ago gives way first."""

from collections import OrderedDict, deque

from trialyard.sandboxes.box_source import BoxKind, PooledBox


class Shelves:
    """Holds boxes and nothing else: it neither starts nor destroys any."""

    def __init__(self) -> None:
        self._boxes: OrderedDict[BoxKind, deque[PooledBox]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._boxes.values()))

    def count(self, kind: BoxKind) -> int:
        return len(self._boxes.get(kind, ()))

    def put(self, kind: BoxKind, box: PooledBox) -> None:
        self._boxes.setdefault(kind, deque()).append(box)

    def take(self, kind: BoxKind) -> PooledBox | None:
        """The box of this kind that waited longest; the kind counts as just used."""
        if kind not in self._boxes:
            return None
        self._boxes.move_to_end(kind)
        return self._pop(kind)

    def evict(self) -> PooledBox | None:
        """A box of the kind that was used longest ago."""
        return self._pop(next(iter(self._boxes))) if self._boxes else None

    def _pop(self, kind: BoxKind) -> PooledBox:
        boxes = self._boxes[kind]
        box = boxes.popleft()
        if not boxes:
            del self._boxes[kind]
        return box
