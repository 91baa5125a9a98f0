"""The launcher's own steps, looked at from inside the tree that they build."""

import os
import subprocess
from pathlib import Path

import pytest

from trialyard.sandboxes.native import native_program

UID = 1_900_000_000


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """A directory whose entries are stored with the owners 0, 1000, 33 and 70000."""
    directory = tmp_path / "layer"
    directory.mkdir()
    for uid in (0, 1000, 33, 70_000):
        path = directory / str(uid)
        path.write_text("text")
        os.chown(path, uid, uid)
    return directory


def launch(tmp_path: Path, *steps: str, program: str = "") -> subprocess.CompletedProcess[str]:
    (tmp_path / "disk").mkdir(exist_ok=True)
    argv = [
        *(str(native_program()), "launch", "--uid", str(UID)),
        *("--tmpfs", str(tmp_path / "disk"), str(1 << 20), "256"),
        *(*steps, "--map", "-", "--ro", "/usr", "usr", "--link", "usr/bin", "bin"),
        *("--link", "usr/lib", "lib", "--link", "usr/lib64", "lib64", "--enter"),
        *("--", "/usr/bin/sh", "-c", program),
    ]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def owners(tmp_path: Path, *steps: str) -> dict[str, str]:
    done = launch(tmp_path, *steps, program="cd /layer || cd /; stat -c '%n %u:%g' [0-9]*")
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


NOBODY = "65534:65534"
ROOT_INSIDE = {
    "0": f"{UID}:{UID}", "1000": f"{UID + 1000}:{UID + 1000}", "33": f"{UID + 33}:{UID + 33}",
    "70000": NOBODY,
}  # fmt: skip
ORDINARY = {"0": "0:0", "1000": f"{UID}:{UID}", "33": "33:33", "70000": NOBODY}


@pytest.mark.parametrize(
    ("map", "seen"),
    [("0:+0:65536", ROOT_INSIDE), ("0:0:1000,1000:+0:1,1001:1001:64535", ORDINARY)],
    ids=["root inside", "ordinary user"],
)
@pytest.mark.parametrize("how", ["--ro", "--overlay"])
def test_owners_are_seen_through_the_map(
    tmp_path: Path, layer: Path, map: str, seen: dict[str, str], how: str
) -> None:
    steps = {"--ro": ("--ro", str(layer), "layer"), "--overlay": ("--overlay", str(layer))}[how]
    assert owners(tmp_path, "--map", map, *steps) == seen


def test_without_a_map_owners_are_as_they_are_stored(tmp_path: Path, layer: Path) -> None:
    plain = {str(uid): f"{uid}:{uid}" for uid in (0, 1000, 33, 70_000)}
    assert owners(tmp_path, "--overlay", str(layer)) == plain
    assert owners(tmp_path, "--map", "0:+0:1", "--map", "-", "--ro", str(layer), "layer") == plain


def test_the_topmost_layer_wins_and_the_layers_own_mounts_are_gone(
    tmp_path: Path, layer: Path
) -> None:
    layers = []
    for number in range(12):
        path = tmp_path / f"l{number}"
        path.mkdir()
        (path / "which").write_text(str(number))
        layers.append(str(path))
    done = launch(
        tmp_path, "--map", "0:+0:65536", "--overlay", ":".join([*layers, str(layer)]),
        program="cat which; echo; cat 33; echo; echo > new; stat -c %u new which; cat /proc/mounts",
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[:4] == ["0", "text", "0", str(UID)]
    assert str(layer) not in done.stdout


def test_a_changed_file_keeps_its_owner(tmp_path: Path, layer: Path) -> None:
    done = launch(
        tmp_path, "--map", "0:+0:65536", "--overlay", str(layer),
        program="echo more >> 33 && stat -c %u:%g 33",
    )  # fmt: skip
    assert done.stdout == f"{UID + 33}:{UID + 33}\n"
    assert (layer / "33").read_text() == "text"


@pytest.mark.parametrize("map", ["x", "0:0", "0:0:1;1:1:1", "0:-1:1", "0:0:0", ""])
def test_a_map_that_is_none_is_refused(tmp_path: Path, layer: Path, map: str) -> None:
    done = launch(tmp_path, "--map", map, "--ro", str(layer), "layer")
    assert done.returncode == 125
    assert "map" in done.stderr
