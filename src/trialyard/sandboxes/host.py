"""One machine that holds boxes: everything that its boxes share, made once.

Opening checks that this host can isolate and reclaims what dead owners left; closing removes
all that opening made. Raises `SandboxUnavailable` or `LimitUnsupported` with the cure.
"""

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trialyard.core.errors import SandboxUnavailable, UserError
from trialyard.core.ids import new_id
from trialyard.core.image import Image
from trialyard.core.sandbox import BoxUser, Limits, check_user
from trialyard.sandboxes.backend import Backend, BubblewrapBackend
from trialyard.sandboxes.cgroups import CgroupParent
from trialyard.sandboxes.hierarchies import read_hierarchies
from trialyard.sandboxes.native import native_program, zygote_library
from trialyard.sandboxes.owner import IdAllocator, Owner
from trialyard.sandboxes.plan import (
    BoxParts,
    BoxPlan,
    BoxTree,
    box_tree,
    check_workdir,
    plan_zygote,
)
from trialyard.sandboxes.protocol import CONTROL_FD
from trialyard.sandboxes.seccomp import seccomp_filters
from trialyard.sandboxes.snapshots import SnapshotStore
from trialyard.sandboxes.system_files import build_dev, check_dev_null, shared_etc
from trialyard.sandboxes.zygote import WarmImport, Zygotes

RUNTIME_DIRECTORY = Path("/run/trialyard")
PYTHON_LAYER = "/opt/trialyard/python"


def default_layers() -> dict[str, Path]:
    """The interpreter that runs trialyard, as boxes see it."""
    return {PYTHON_LAYER: Path(sys.base_prefix)}


def check_privilege() -> None:
    """Boxes get host uids of their own, which only root can give."""
    if os.geteuid() != 0:
        raise SandboxUnavailable(
            "boxes need a supervisor that runs as root, to give each a host uid of its own and "
            "a quota on its files; run trialyard as root (it never runs a task's code as root)"
        )


def check_host() -> None:
    """What must be there before any box can start. Raises `SandboxUnavailable`."""
    native_program()
    check_privilege()


def _links_for(layers: Mapping[str, Path]) -> dict[str, str]:
    """Where a layer was installed on the host, for programs that hold that path inside."""
    return {
        str(source): path
        for path, source in layers.items()
        if not str(source).startswith(("/usr/", "/etc/", "/opt/", "/tmp/", "/proc/", "/dev/"))
        and str(source) not in ("/", "/usr")
        and path == PYTHON_LAYER
    }


class SandboxHost:
    """What all boxes of one owner are made of. Close it after the last box."""

    def __init__(
        self,
        *,
        backend: Backend | None = None,
        layers: Mapping[str, Path] | None = None,
        runtime_directory: Path = RUNTIME_DIRECTORY,
        warm_interpreters: bool = True,
        warm_imports: Sequence[WarmImport] = (),
        snapshots: SnapshotStore | None = None,
    ) -> None:
        check_privilege()
        check_dev_null()
        program, filters = native_program(), seccomp_filters()
        self.backend: Backend = backend or BubblewrapBackend()
        layers = default_layers() if layers is None else dict(layers)
        for path, source in layers.items():
            if not source.exists():
                raise UserError(f"layer {path}: {source} does not exist on this host")
        self.snapshots = snapshots or SnapshotStore(runtime_directory / "snapshots")
        hierarchies = read_hierarchies()
        self.owner = Owner(runtime_directory, new_id(f"p{os.getpid()}"), hierarchies)
        try:
            self.cgroups = CgroupParent(hierarchies, self.owner.name)
            self._parts = self._make_parts(program, filters, layers)
            self._keeper = Keeper(program, self.owner.directory, self.cgroups.directories())
        except BaseException:
            self.owner.close()
            raise
        self._plan = functools.lru_cache(maxsize=256)(self._make_plan)
        zygote = plan_zygote(self._parts, zygote_library(), self.cgroups.directories())
        self.zygotes = (
            Zygotes(lambda rest: [*zygote, *rest], warm_imports)
            if warm_interpreters and self.backend.has_warm_interpreters and PYTHON_LAYER in layers
            else None
        )

    def _make_parts(
        self,
        program: Path,
        filters: tuple[bytes, ...],
        layers: Mapping[str, Path],
    ) -> BoxParts:
        directory = self.owner.directory
        build_dev(directory / "dev")
        seccomp = []
        for index, data in enumerate(filters):
            path = directory / f"seccomp-{index}.bpf"
            path.write_bytes(data)
            seccomp.append(path)
        return BoxParts(
            program=program,
            mount_point=directory.parent.parent / "tree",
            etc=shared_etc(directory.parent.parent, scratch=directory),
            dev=directory / "dev",
            seccomp=tuple(seccomp),
            layers={path: source.resolve() for path, source in layers.items()},
            links=_links_for(layers),
        )

    def plan(self, image: Image, limits: Limits, workdir: str, user: BoxUser = "user") -> BoxPlan:
        """The launch plan of a kind. Raises `UserError` for a workdir or user that cannot be."""
        return self._plan(image, limits, check_workdir(workdir), check_user(user))

    def _make_plan(self, image: Image, limits: Limits, workdir: str, user: BoxUser) -> BoxPlan:
        return self.backend.plan(self._parts, image, limits, workdir, user)

    def ids(self, user: BoxUser) -> IdAllocator:
        """Where the host ids of a box with this user come from."""
        return self.owner.ranges if user == "root" else self.owner.uids

    def tree(self, image: Image) -> BoxTree:
        """What of the tree of an image's boxes is their own."""
        return box_tree(self._parts, image)

    def close(self) -> bool:
        """Remove what this owner made; True when nothing is left. Idempotent."""
        gone = self.cgroups.remove()
        self.owner.close()
        self._keeper.close()
        return gone


class Keeper:
    """A process of ours that outlives a killed supervisor and tidies up (native/keeper.c)."""

    def __init__(self, program: Path, directory: Path, groups: tuple[str, ...]) -> None:
        read_fd, self._alive_fd = os.pipe2(os.O_CLOEXEC)
        try:
            self._pid = os.posix_spawn(
                program,
                [str(program), "keeper", str(directory), *groups],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, read_fd, CONTROL_FD)],
            )
        finally:
            os.close(read_fd)

    def close(self) -> None:
        """Let it go; it finds nothing to do. Idempotent."""
        if self._alive_fd >= 0:
            os.close(self._alive_fd)
            self._alive_fd = -1
            os.waitpid(self._pid, 0)
