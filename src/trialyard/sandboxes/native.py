"""The native program of a box, built from native/ when trialyard is installed."""

from importlib.resources import files
from pathlib import Path

from trialyard.core.errors import SandboxUnavailable

PROGRAM_NAME = "trialyard-box"


def native_program() -> Path:
    """Path of the program. Raises `SandboxUnavailable` when it was not built."""
    path = Path(str(files("trialyard"))) / "_native" / PROGRAM_NAME
    if not path.is_file():
        raise SandboxUnavailable(
            f"{path} is missing: trialyard was installed without its native program. "
            "Install a C compiler (Debian: gcc libc6-dev) and install trialyard again."
        )
    return path
