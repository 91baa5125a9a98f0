"""Images: content-addressed root filesystems, named by tags."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Image:
    """A root filesystem that boxes start from.

    `lowers` are host directories, topmost first, that are stacked read-only below the
    box's writable layer, with the ids that the box sees. `on_host` puts the machine's own
    ``/usr`` and a made ``/etc`` over them, read-only: the image named ``host`` is that alone,
    and a snapshot of a box on it has lowers too.
    """

    name: str
    digest: str
    lowers: tuple[str, ...]
    on_host: bool = False
