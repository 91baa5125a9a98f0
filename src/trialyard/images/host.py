"""The ``host`` image: the machine's own /usr, read-only, so that the first command works
offline. Its digest follows the release and the installed packages."""

import hashlib
from pathlib import Path

from trialyard.core.image import Image

HOST = "host"
_PACKAGE_STATE = (
    "usr/lib/os-release",
    "var/lib/dpkg/status",
    "var/lib/rpm/rpmdb.sqlite",
    "usr/lib/sysimage/rpm/rpmdb.sqlite",
    "lib/apk/db/installed",
)


def host_image(root: Path = Path("/")) -> Image:
    """The image of this machine. Equal packages, equal digest."""
    digest = hashlib.sha256()
    for name in _PACKAGE_STATE:
        path = root / name
        data = path.read_bytes() if path.is_file() else b""
        digest.update(f"{name}:{len(data)}:".encode() + data)
    return Image(name=HOST, digest=digest.hexdigest(), lowers=(), on_host=True)
