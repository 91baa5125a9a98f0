"""Boxes that an OCI runtime sets up: the same tree, limits and PID 1 as under bubblewrap.

`OciBackend` is given to a `SandboxHost`; all else is shared with `NamespaceSandbox`. The
runtime never runs as root (native/oci.c). Runtimes whose guest cannot take a descriptor of the
host's (runsc, kata) cannot hold our PID 1 and are refused, as are versions with known escapes.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trialyard.core.errors import SandboxUnavailable
from trialyard.core.image import Image
from trialyard.core.sandbox import BoxUser, Limits
from trialyard.sandboxes.oci_config import Json, box_config
from trialyard.sandboxes.owner import IDS_PER_RANGE
from trialyard.sandboxes.plan import ROOT_MAP, BoxParts, BoxPlan, tree_steps
from trialyard.sandboxes.system_files import BOX_UID

RUNTIMES = ("runc", "crun")
WITHOUT_DESCRIPTORS = ("runsc", "kata-runtime", "kata", "krun")
SETUP_UID_OFFSET = 2_000_000
"""The runtime of an ordinary box with host uid N runs as uid N plus this; nobody else does.
With root inside it is root of the same namespace as the box's root, and runs as that uid."""
_UNIFIED = Path("/sys/fs/cgroup/unified")
_VERSION_TIMEOUT_S = 10
_FIXED_RUNC = ((1, 2, 8), (1, 3, 3))
_FIRST_FIXED_CANDIDATE = ((1, 4, 0), 3)
_OWNER_MARK, _USER_MARK = 4_000_000_001, 4_000_000_002
"""Stand for the box's two uids in a configuration that is rendered once."""


@dataclass(frozen=True, slots=True)
class OciRuntime:
    """A runtime binary that was found. `verdict` is empty when its version is fit."""

    name: str
    path: Path
    version: str
    verdict: str


def find_runtime(name: str) -> OciRuntime:
    """Look a runtime up by name or path. Raises `SandboxUnavailable`."""
    found = shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")
    if found is None:
        raise SandboxUnavailable(
            f"the OCI runtime {name!r} is missing; install it (Debian and Ubuntu: apt-get "
            f"install {Path(name).name}) or name another one"
        )
    path = Path(found).resolve()
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, env={}, check=True,
            timeout=_VERSION_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"{path} --version failed ({error})") from error
    kind, version = _identify(done.stdout, Path(name).name)
    return OciRuntime(kind, path, version, _verdict(kind, version))


def _identify(text: str, name: str) -> tuple[str, str]:
    """What the binary says it is: a name such as docker-runc says little."""
    match = re.search(r"^(\S+) version:? v?(\S+)", text, re.MULTILINE)
    return (match[1], match[2]) if match else (name, "")


def _verdict(kind: str, version: str) -> str:
    """Why this runtime must not be used; empty when nothing is known against it."""
    if kind != "runc":
        return ""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)(?:-rc\.?(\d+))?", version)
    if match is None:
        return f"its version {version!r} cannot be read"
    number = (int(match[1]), int(match[2]), int(match[3]))
    candidate = int(match[4]) if match[4] else None
    if _is_fixed(number, candidate):
        return ""
    return (
        f"runc {version} lacks the fixes of November 2025 for CVE-2025-31133, CVE-2025-52565 and "
        "CVE-2025-52881, with which an image or a shared mount makes it write to the host's "
        "/proc; 1.2.8, 1.3.3 and later have them"
    )


def _is_fixed(number: tuple[int, int, int], candidate: int | None) -> bool:
    if candidate is not None and (number, candidate) < _FIRST_FIXED_CANDIDATE:
        return False
    old, new = _FIXED_RUNC
    return number >= new or old <= number < (*new[:2], 0)


@dataclass(frozen=True, slots=True)
class OciPlan:
    """A box that an OCI runtime sets up."""

    program: str
    before: tuple[str, ...]
    config: str
    """The text of config.json with marks in place of the box's uids."""
    after: tuple[str, ...]
    user: BoxUser
    apart: bool = True

    def argv(self, group_steps: Sequence[str], uid: int) -> list[str]:
        owner = uid if self.user == "root" else uid + SETUP_UID_OFFSET
        config = self.config.replace(str(_OWNER_MARK), str(owner))
        config = config.replace(str(_USER_MARK), str(uid))
        map = ROOT_MAP if self.user == "root" else f"0:{owner}:1,{BOX_UID}:{uid}:1"
        return [
            *(self.program, "launch", *group_steps, "--uid", str(uid), *self.before),
            *("--oci", str(owner), map, config, *self.after),
        ]


class OciBackend:
    """Sets boxes up with an OCI runtime. Raises `SandboxUnavailable` if it is not fit."""

    name = "oci"
    has_warm_interpreters = False

    def __init__(self, runtime: str = "runc", *, allow_vulnerable_runtime: bool = False) -> None:
        self._allow_vulnerable = allow_vulnerable_runtime
        self._check_name(Path(runtime).name)
        self.runtime = self._check(find_runtime(runtime))

    def _check_name(self, name: str) -> None:
        if name in WITHOUT_DESCRIPTORS or name.startswith("kata"):
            raise SandboxUnavailable(
                f"the OCI runtime {name} runs its guest under a kernel of its own, which cannot "
                "take the control socket of our PID 1; only runtimes on the host's kernel "
                f"({', '.join(RUNTIMES)}) are supported"
            )

    def _check(self, runtime: OciRuntime) -> OciRuntime:
        self._check_name(runtime.name)
        if runtime.verdict and not self._allow_vulnerable:
            raise SandboxUnavailable(
                f"{runtime.path}: {runtime.verdict}. Install a newer one, or, if your "
                "distribution patched this one or no untrusted image is used, set "
                "allow_vulnerable_runtime (--allow-vulnerable-runtime)"
            )
        return runtime

    def plan(
        self, parts: BoxParts, image: Image, limits: Limits, workdir: str, user: BoxUser
    ) -> BoxPlan:
        """The plan for one kind of box."""
        disk = parts.mount_point
        ids = [(0, _OWNER_MARK, 1), (BOX_UID, _USER_MARK, 1)]
        if user == "root":
            ids = [(0, _USER_MARK, IDS_PER_RANGE)]
        maps: list[Json] = [
            {"containerID": inside, "hostID": mark, "size": size} for inside, mark, size in ids
        ]
        config = box_config(f"{disk}/root", f"{disk}/bundle/user-namespace", limits, maps, user)
        return OciPlan(
            program=str(parts.program),
            before=(*tree_steps(parts, image, limits, workdir, user), *_one_cgroup_tree()),
            config=json.dumps(config, separators=(",", ":")),
            after=("--", str(self.runtime.path), *self._options()),
            user=user,
        )

    def _options(self) -> Sequence[str]:
        return ("--cgroup-manager=disabled",) if self.runtime.name == "crun" else ()


def _one_cgroup_tree() -> Sequence[str]:
    """On a host that mixes both versions the runtime is shown version 2 alone.

    crun refuses the mixture, and no runtime is to manage cgroups anyway.
    """
    return ("--view", str(_UNIFIED), str(_UNIFIED.parent)) if _UNIFIED.is_dir() else ()
