"""Where the grader's read-only layers lie inside a box, and the environment of its runs.

The wiring mounts them; nothing a candidate can write is on the interpreter's path
before them. `RUNNER_SOURCE` is the directory on this machine that belongs at `GRADER`.
"""

import importlib.util
import py_compile
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path

from trialyard.core.errors import NotFoundError
from trialyard.core.ids import tree_hash

PYTHON = "/opt/trialyard/python/bin/python3"
GRADER = "/opt/trialyard/grader"
PYTEST = "/opt/trialyard/pytest"
RUNNER_SOURCE = Path(str(resources.files("trialyard.graders"))) / "runner"

PYTHON_FLAGS = ("-P", "-s", "-S")
"""As ``-I -S``, but PYTHONHASHSEED is heeded: the grader sets the whole environment."""


_PYTEST_PACKAGES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")


def compile_runners() -> None:
    """Keep the runners' compiled form beside them: a box cannot, and would compile anew."""
    for path in RUNNER_SOURCE.glob("*.py"):
        with suppress(OSError):  # an installation that this user cannot write to
            py_compile.compile(str(path), doraise=True)


def build_pytest_layer(directory: Path) -> Path:
    """Copy pytest and what it imports into `directory`, for mounting at `PYTEST`.

    Raises `NotFoundError` when pytest is not installed beside trialyard.
    """
    for name in _PYTEST_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise NotFoundError(f"tests checks need the package {name}: pip install pytest")
        source = Path(spec.origin)
        if spec.submodule_search_locations:
            shutil.copytree(source.parent, directory / name, dirs_exist_ok=True)
        else:
            shutil.copy(source, directory)
    directory.chmod(0o755)  # boxes read it as somebody else
    return directory


def grader_version() -> str:
    """Content hash over the grader's own source: other code, other verdicts."""
    root = RUNNER_SOURCE.parent
    files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.py")}
    return tree_hash(files)[:16]


def run_environment(seed: int) -> Mapping[str, str]:
    """The whole environment of a grading command: fixed locale, zone and hash seed."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": str(seed % (1 << 32)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
