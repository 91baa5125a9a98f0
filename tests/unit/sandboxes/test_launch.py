"""The launcher's own steps, looked at from inside the tree that they build."""

import os
import subprocess
import sys
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


def public_layer(layer: Path) -> None:
    (layer / "shut").mkdir(mode=0o700)
    (layer / "shut" / "inner").write_text("canary")
    (layer / "private").write_text("canary")
    (layer / "private").chmod(0o640)


@pytest.mark.parametrize("map", ["0:+0:65536", "-"])
def test_of_the_hosts_own_only_what_is_public_is_shown(
    tmp_path: Path, layer: Path, map: str
) -> None:
    """As root of the box, which is how it is looked at here, though it owns what it sees."""
    public_layer(layer)
    look = (
        f"exec {sys.base_prefix}/bin/python3 -I -S -c 'import os\n"
        f"os.setgroups([]); os.setresgid({UID}, {UID}, {UID}); os.setresuid({UID}, {UID}, {UID})\n"
        'for name in ("0", "private", "shut/inner"):\n'
        '    try: print(open("/layer/" + name).read())\n'
        "    except OSError as error: print(type(error).__name__)'"
    )
    prefix = sys.base_prefix
    done = launch(
        tmp_path, "--map", map, "--public", str(layer), "layer", "--map", "-",
        "--ro", prefix, prefix.lstrip("/"), program=look,
    )  # fmt: skip
    assert done.stdout.split() == ["text", "PermissionError", "PermissionError"], done.stderr


def test_public_owners_are_seen_through_the_map_and_nothing_is_written(
    tmp_path: Path, layer: Path
) -> None:
    public_layer(layer)
    done = launch(
        tmp_path, "--map", "0:+0:65536", "--public", str(layer), "layer",
        program="cd /layer; stat -c %u private 33 70000; ls; echo x > new || echo refused",
    )  # fmt: skip
    assert done.stdout.split() == [
        str(UID), str(UID + 33), "65534", "0", "1000", "33", "70000", "private", "shut", "refused",
    ]  # fmt: skip


def test_what_is_made_belongs_to_root_inside(tmp_path: Path, layer: Path) -> None:
    done = launch(
        tmp_path, "--map", "0:+0:65536", "--root", "--overlay", str(layer),
        *("--dir", "0755", "a/b", "--file", "a/f", "text", "--link", "f", "a/l"),
        *("--own", "0700", "c", "--own-by", "1000", "0755", "d", "--ro", "/etc", "e/f"),
        program="stat -c %u / a a/b a/f a/l c d e 33",
    )  # fmt: skip
    assert done.stdout.split() == [str(UID + id) for id in (0, 0, 0, 0, 0, 0, 1000, 0, 33)]


def test_a_file_system_that_cannot_map_owners_shows_them_as_they_are(tmp_path: Path) -> None:
    """As nobody's, to a box. Only image layers need the map: there a box changes owners."""
    place = tmp_path / "ramfs"
    place.mkdir()
    inner = [
        *(str(native_program()), "launch", "--uid", str(UID), "--tmpfs", str(tmp_path / "disk")),
        *(str(1 << 20), "256", "--map", "0:+0:65536"),
    ]
    after = [
        *("--map", "-", "--ro", "/usr", "usr", "--link", "usr/bin", "bin", "--link", "usr/lib"),
        *("lib", "--link", "usr/lib64", "lib64", "--enter", "--", "/usr/bin/stat", "-c", "%u", "l"),
    ]
    (tmp_path / "disk").mkdir()
    script = f'mount -t ramfs none {place} && exec "$@"'
    for step in ("--ro", "--public"):
        argv = ["unshare", "-m", "sh", "-c", script, "sh", *inner, step, str(place), "l", *after]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.stdout == "0\n", done.stderr
    argv = ["unshare", "-m", "sh", "-c", script, "sh", *inner, "--overlay", str(place), *after]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert "map the owners of image layer" in done.stderr
