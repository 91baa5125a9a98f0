"""The native program of a box, built from native/ when trialyard is installed."""

from importlib.resources import files
from pathlib import Path

from trialyard.core.errors import SandboxUnavailable

PROGRAM_NAME = "trialyard-box"
ZYGOTE_NAME = "trialyard-zygote.so"


def native_program() -> Path:
    """Path of the program. Raises `SandboxUnavailable` when it was not built."""
    return _built(PROGRAM_NAME)


def zygote_library() -> Path:
    """Path of the library that makes an interpreter a zygote."""
    return _built(ZYGOTE_NAME)


def _built(name: str) -> Path:
    path = Path(str(files("trialyard"))) / "_native" / name
    if not path.is_file():
        raise SandboxUnavailable(
            f"{path} is missing: trialyard was installed without its native program. "
            "Install a C compiler (Debian: gcc libc6-dev) and install trialyard again."
        )
    return path
