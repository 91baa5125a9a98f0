"""Builds the native program of the sandboxes (see native/main.c) along with the package."""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
LIBRARY = "zygote.c"


def build_native(directory: Path) -> None:
    """Compile native/: one static program, and a library that is preloaded into interpreters."""
    directory.mkdir(parents=True, exist_ok=True)
    sources = [path for path in sorted((ROOT / "native").glob("*.c")) if path.name != LIBRARY]
    compile_to(directory / "trialyard-box", ("-static",), sources)
    library = [ROOT / "native" / LIBRARY]
    compile_to(directory / "trialyard-zygote.so", ("-shared", "-fPIC"), library)


def compile_to(target: Path, flags: tuple[str, ...], sources: list[Path]) -> None:
    """A clear error without a compiler."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit(
            "trialyard needs a C compiler to build its sandbox program, and found neither "
            "`cc` nor `gcc`. Install one (Debian and Ubuntu: apt-get install gcc libc6-dev)."
        )
    # Built beside the target and moved over it: a box may be executing the old one.
    unfinished = target.with_suffix(".new")
    command = [*compiler.split(), *FLAGS, *flags, "-o", str(unfinished), *map(str, sources)]
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
        build_native(parent / "trialyard" / "_native")


class PlatformDistribution(Distribution):
    """The wheel holds machine code, so it is not for any platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithNative}, distclass=PlatformDistribution)
