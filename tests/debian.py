"""A small Debian-like image for tests, put together from this machine's own programs.

Its files are stored with the owners that they have inside, as image layers are: most of them
root, some not.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from trialyard.core.image import Image

_PROGRAMS = """
    bash cat chmod chown cp diff dpkg dpkg-deb dpkg-query dpkg-split env getent grep groups id
    ldconfig ln ls mkdir mkfifo mv rm runuser sed setpriv sh sleep start-stop-daemon stat su
    tail tar touch true useradd whoami
"""
_PYTHON_MODULES = ("_ctypes", "_socket", "_struct", "fcntl", "resource")
"""Of the interpreter that boxes see, whose libraries come from the image."""
_PAM_MODULES = ("pam_rootok", "pam_permit", "pam_deny")
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nwww-data:x:33:33::/var/www:/bin/sh\n",
    "etc/group": "root:x:0:\ntty:x:5:\nwww-data:x:33:\nshadow:x:42:\n",
    "etc/shadow": "root:*:19000:0:99999:7:::\nwww-data:*:19000:0:99999:7:::\n",
    "etc/gshadow": "root:*::\nwww-data:!::\nshadow:*::\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\n",
    "etc/login.defs": "UID_MIN 1000\nUID_MAX 60000\nGID_MIN 1000\nGID_MAX 60000\n",
    "etc/pam.d/other": "auth sufficient pam_rootok.so\nauth required pam_deny.so\n"
    "account required pam_permit.so\nsession required pam_permit.so\n"
    "password required pam_deny.so\n",
    "var/lib/dpkg/status": "",
    "var/www/page": "of www-data",
    "root/.profile": "",
}


def debian_image(directory: Path) -> Image:
    """Build the image below `directory`; owners are as stored."""
    for name in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "proc", "tmp", "home"):
        (directory / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (directory / name).symlink_to(f"usr/{name}")
    _add_programs(directory)
    _add_files(directory)
    return Image("debian", "0" * 64, (str(directory),))


def _add_programs(directory: Path) -> None:
    for name in _PROGRAMS.split():
        found = shutil.which(name, path="/usr/bin:/usr/sbin:/bin:/sbin")
        assert found is not None, name
        _copy_with_libraries(Path(found).resolve(), directory, name=Path(found).name)
    for name in _PAM_MODULES:
        (module,) = Path("/usr/lib").glob(f"*/security/{name}.so")
        _copy_with_libraries(module, directory, name=module.name)
    _copy_libraries(Path(sys.executable).resolve(), directory)
    for name in _PYTHON_MODULES:
        for module in Path(sys.base_prefix).glob(f"lib/python3*/lib-dynload/{name}.*.so"):
            _copy_libraries(module, directory)


def _add_files(directory: Path) -> None:
    for name, text in _FILES.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    for name in ("info", "updates", "triggers", "parts"):
        (directory / "var/lib/dpkg" / name).mkdir()
    for name in ("etc/shadow", "etc/gshadow"):
        os.chown(directory / name, 0, 42)
        (directory / name).chmod(0o640)
    (directory / "root").chmod(0o700)
    (directory / "tmp").chmod(0o1777)
    for name in ("var/www", "var/www/page"):
        os.chown(directory / name, 33, 33)
    (directory / "var/www/page").chmod(0o600)


def _copy_with_libraries(program: Path, directory: Path, *, name: str) -> None:
    _copy_libraries(program, directory)
    _copy(program, directory, name)


def _copy_libraries(program: Path, directory: Path) -> None:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for library in map(Path, re.findall(r"(/\S+) \(0x", listed)):
        _copy(library, directory, library.name)


def _copy(source: Path, directory: Path, name: str) -> None:
    place = source.parent.relative_to("/usr" if source.is_relative_to("/usr") else "/")
    target = directory / "usr" / place / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copyfile(source, target)
        target.chmod(0o755)
