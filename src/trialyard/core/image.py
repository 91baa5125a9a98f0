"""Images: content-addressed root filesystems, named by tags."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Image:
    """A root filesystem that boxes start from.

    `lowers` are host directories, topmost first, that are stacked read-only below the
    box's writable layer. The image named ``host`` is the machine's own ``/usr``.
    """

    name: str
    digest: str
    lowers: tuple[str, ...]
