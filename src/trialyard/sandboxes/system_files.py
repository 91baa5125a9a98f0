"""What a box on the ``host`` image sees as /etc and /dev: made fresh, nothing personal.

Shared read-only by all boxes of this host. /etc is built once for each state of the host's
own, because it has hundreds of entries. It holds a named set of the host's
public configuration and synthesised users; no keys, no passwords, no host name.
"""

import os
import shutil
import stat
import tempfile
from pathlib import Path

from trialyard.core.errors import SandboxUnavailable
from trialyard.core.ids import content_hash

USER = "user"
BOX_UID = 1000
HOME = "/home/user"
ROOT = "root"
ROOT_HOME = "/root"

_COPIED_NAMES = (
    "alternatives bash.bashrc ca-certificates debian_version fonts gai.conf host.conf inputrc "
    "ld.so.cache ld.so.conf ld.so.conf.d locale.alias localtime magic mime.types perl protocols "
    "python3 python3.9 python3.10 python3.11 python3.12 python3.13 rpc services ssl/openssl.cnf "
    "ssl/certs/ca-certificates.crt terminfo timezone"
)
_COPIED = tuple(_COPIED_NAMES.split())

_WRITTEN = {
    "passwd": f"{ROOT}:x:0:0:root:{ROOT_HOME}:/bin/sh\n"
    f"{USER}:x:{BOX_UID}:{BOX_UID}::{HOME}:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\ntty:x:5:\n{USER}:x:{BOX_UID}:\nnogroup:x:65534:\n",
    "pam.d/other": "auth sufficient pam_rootok.so\nauth required pam_deny.so\n"
    "account required pam_permit.so\nsession required pam_permit.so\n"
    "password required pam_deny.so\n",
    "hosts": "127.0.0.1 localhost box\n::1 localhost\n",
    "hostname": "box\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\n"
    "protocols: files\n",
    "resolv.conf": "",
    "profile": "export PATH HOME LANG\n",
}

_DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}

_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


def shared_etc(parent: Path, *, scratch: Path | None = None, host_etc: Path = Path("/etc")) -> Path:
    """The /etc of boxes below `parent`, built when this state of the host's is new.

    It is built in `scratch` (default: `parent`), whose owner's death takes an unfinished one.
    """
    sources = [*(host_etc / name for name in _COPIED), *sorted(host_etc.glob("java-*"))]
    state = [[str(path), _state_of(path)] for path in sources]
    directory = parent / f"etc-{content_hash([state, _WRITTEN])[:16]}"
    if not directory.is_dir():
        unfinished = Path(tempfile.mkdtemp(dir=scratch or parent, prefix="etc-new-"))
        for source in sources:
            _copy(source, unfinished / source.relative_to(host_etc))
        for name, text in _WRITTEN.items():
            (unfinished / name).parent.mkdir(exist_ok=True)
            (unfinished / name).write_text(text)
        (unfinished / "os-release").symlink_to("/usr/lib/os-release")
        (unfinished / "mtab").symlink_to("/proc/self/mounts")
        _make_public(unfinished)
        try:
            unfinished.rename(directory)
        except OSError:  # another owner was faster
            shutil.rmtree(unfinished)
    return directory


def _state_of(path: Path) -> list[int]:
    if not path.exists():
        return []
    status = path.stat()
    return [status.st_mtime_ns, status.st_size]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=shutil.copyfile)
    elif source.is_file():
        shutil.copyfile(source, target)


def _make_public(directory: Path) -> None:
    """Readable by everybody whatever the umask; nothing is writable for a box anyway."""
    for parent, _, files in os.walk(directory):
        Path(parent).chmod(0o755)
        for name in files:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o644)


def build_dev(directory: Path) -> None:
    """Fill `directory` with the device nodes of a box and its mount points."""
    directory.mkdir(mode=0o755)
    for name, (major, minor) in _DEVICES.items():
        os.mknod(directory / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        (directory / name).chmod(0o666)
    for name, target in _DEVICE_LINKS.items():
        (directory / name).symlink_to(target)
    for name in ("shm", "pts"):
        (directory / name).mkdir(mode=0o755)


def check_dev_null() -> None:
    """The host's /dev/null covers files in /proc: it must be the real one."""
    status = Path("/dev/null").stat()
    if not stat.S_ISCHR(status.st_mode) or status.st_rdev != os.makedev(1, 3):
        raise SandboxUnavailable(
            "/dev/null of this host is not the null device (character 1:3); restore it with "
            "`rm -f /dev/null && mknod -m 666 /dev/null c 1 3`"
        )
