"""Every command of the README runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, re.S | re.M)


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    for target in re.findall(r"^make (\S+)", BLOCKS[0], re.M):
        assert target in targets


def test_the_things_to_try_one_at_a_time_work(tmp_path: Path) -> None:
    script = BLOCKS[1].replace("/tmp/", f"{tmp_path}/")
    lines = [line for line in script.splitlines() if not line.startswith(". ")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", "\n".join(lines)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "42" in done.stdout
    assert "reward 1.0" in done.stdout


def test_every_link_and_file_named_is_there() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
