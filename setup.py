"""Builds the native program of the sandboxes (see native/main.c) along with the package."""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FLAGS = ("-std=gnu11", "-O2", "-static", "-Wall", "-Wextra", "-Werror")


def build_native(target: Path) -> None:
    """Compile native/*.c into one static program; a clear error without a compiler."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit(
            "trialyard needs a C compiler to build its sandbox program, and found neither "
            "`cc` nor `gcc`. Install one (Debian and Ubuntu: apt-get install gcc libc6-dev)."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(path) for path in (ROOT / "native").glob("*.c"))
    # Built beside the target and moved over it: a box may be executing the old one.
    unfinished = target.with_suffix(".new")
    command = [*compiler.split(), *FLAGS, "-o", str(unfinished), *sources]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(
            f"building the sandbox program failed: {' '.join(command)}\n"
            "The static C library is needed (Debian and Ubuntu: apt-get install libc6-dev)."
        )
    unfinished.replace(target)


class BuildWithNative(build_py):
    """build_py that also compiles; into the source tree for editable installs."""

    def run(self) -> None:
        super().run()
        parent = ROOT / "src" if self.editable_mode else Path(self.build_lib)
        build_native(parent / "trialyard" / "_native" / "trialyard-box")


class PlatformDistribution(Distribution):
    """The wheel holds machine code, so it is not for any platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithNative}, distclass=PlatformDistribution)
