"""What sets boxes up: bubblewrap here, an OCI runtime in oci.py. All else of a box is shared."""

import shutil
from pathlib import Path
from typing import Protocol

from trialyard.core.errors import SandboxUnavailable
from trialyard.core.image import Image
from trialyard.core.sandbox import BoxUser, Limits
from trialyard.sandboxes.plan import BoxParts, BoxPlan, plan_box


class Backend(Protocol):
    """Made once for a host; making it raises `SandboxUnavailable` where it cannot work."""

    @property
    def name(self) -> str: ...

    @property
    def has_warm_interpreters(self) -> bool:
        """Whether a zygote's fork may enter its boxes."""
        ...

    def plan(
        self, parts: BoxParts, image: Image, limits: Limits, workdir: str, user: BoxUser
    ) -> BoxPlan:
        """The plan for one kind of box."""
        ...


class BubblewrapBackend:
    """The default: bubblewrap makes the namespaces."""

    name = "namespace"
    has_warm_interpreters = True

    def __init__(self) -> None:
        self._program = find_bubblewrap()

    def plan(
        self, parts: BoxParts, image: Image, limits: Limits, workdir: str, user: BoxUser
    ) -> BoxPlan:
        return plan_box(parts, self._program, image, limits, workdir, user)


def find_bubblewrap() -> Path:
    """Path of bwrap. Raises `SandboxUnavailable`."""
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable(
            "bubblewrap (bwrap) is missing; install it (Debian and Ubuntu: apt-get install "
            "bubblewrap)"
        )
    return Path(found)
