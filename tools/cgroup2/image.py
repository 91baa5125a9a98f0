"""The disks of the guest of run.py: a Debian system with this machine's Python, and the sources.

The base disk holds the files of installed Debian packages (the essential ones, what the boxes
need, and their dependencies), the interpreter, the virtual environment without what only
training needs, and the kernel's modules; it is made again when one of these changes. The
repository's disk is made for every run. Paths are those of this machine.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / "build" / "cgroup2"
KERNEL_PACKAGE = "linux-image-cloud-amd64"
_WANTED = (
    "bubblewrap crun fuse-overlayfs gcc git iproute2 kmod libc6-dev libseccomp2 mawk mount "
    "nftables procps python3 runc slirp4netns strace util-linux"
)
"""Packages that go into the guest where they are installed here."""
_NOT_IN_GUEST = "torch transformers sympy matplotlib fontTools networkx nvidia triton"
"""Parts of the virtual environment that no test of the boxes imports."""
_ETC = (
    "alternatives bash.bashrc ca-certificates debian_version gai.conf group host.conf hosts "
    "ld.so.conf ld.so.conf.d localtime login.defs magic mime.types nsswitch.conf pam.d passwd "
    "perl profile protocols python3 python3.11 security services shells ssl terminfo timezone"
)
_MOUNT_POINTS = "dev proc sys run tmp root var/tmp var/lib mnt"
_SKIPPED = re.compile(r"/usr/share/(doc|man|locale|info|lintian|bug)/|/(etc|dev|proc|sys|run)/")
_SPARSE_BYTES = 6 << 30
_REPOSITORY_BYTES = 256 << 20


@dataclass(frozen=True)
class Disks:
    directory: Path
    kernel: Path
    base: Path
    repository: Path


def build(say: Callable[[str], None], *, guest_command: str) -> Disks:
    """The disks of the next boot. Raises `SystemExit` with what to do."""
    if os.uname().machine != "x86_64" or not Path("/var/lib/dpkg/status").exists():
        raise SystemExit("cgroup2: this runs on Debian and Ubuntu for x86_64 only")
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    unpacked = _kernel(say)
    [kernel] = (unpacked / "boot").glob("vmlinuz-*")
    names = list(_closure(_installed()))
    wanted = hashlib.sha256(
        repr([names, sys.prefix, sys.base_prefix, sorted(_venv_parts()), kernel.name]).encode()
        + Path(__file__).read_bytes()
    ).hexdigest()
    stamp, base = DIRECTORY / "base.stamp", DIRECTORY / "base.ext4"
    if not base.exists() or not stamp.exists() or stamp.read_text() != wanted:
        say("building the guest's disk (again only when packages change)")
        stamp.unlink(missing_ok=True)
        _with_stage(lambda stage: _fill_base(stage, unpacked, names), base, _SPARSE_BYTES)
        stamp.write_text(wanted)
    repository = DIRECTORY / "repository.ext4"
    _with_stage(lambda stage: _fill_repository(stage, guest_command), repository, _REPOSITORY_BYTES)
    return Disks(DIRECTORY, kernel, base, repository)


def _with_stage(fill: Callable[[Path], None], target: Path, size_bytes: int) -> None:
    stage = DIRECTORY / f"{target.stem}.stage"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    try:
        fill(stage)
        target.unlink(missing_ok=True)
        _as_root(
            ["mke2fs", "-q", "-t", "ext4", "-E", "root_owner=0:0", "-d", str(stage), str(target),
             f"{size_bytes >> 10}k"]
        )  # fmt: skip
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _as_root(argv: list[str], **options: object) -> None:
    """As root, or as what looks like root: files of an ordinary user are root's in the guest."""
    prefix = [] if os.geteuid() == 0 else ["unshare", "--map-root-user"]
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    subprocess.run([*prefix, *argv], check=True, env=environment, **options)  # type: ignore[call-overload]


def _kernel(say: Callable[[str], None]) -> Path:
    """The unpacked kernel package; downloaded when it is not here yet."""
    unpacked = DIRECTORY / "kernel"
    if not unpacked.exists():
        names = re.findall(
            r"Depends: (linux-image-\S+)", _output("apt-cache", "depends", KERNEL_PACKAGE)
        )
        if not names:
            raise SystemExit(f"cgroup2: apt knows no {KERNEL_PACKAGE}; run `apt-get update`")
        say(f"downloading {names[0]} (it is unpacked, not installed)")
        for old in DIRECTORY.glob("linux-image-*.deb"):
            old.unlink()
        subprocess.run(
            ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", names[0]],
            cwd=DIRECTORY, check=True,
        )  # fmt: skip
        [package] = DIRECTORY.glob("linux-image-*.deb")
        partial = DIRECTORY / "kernel.new"
        shutil.rmtree(partial, ignore_errors=True)
        subprocess.run(["dpkg", "-x", package, partial], check=True)
        partial.rename(unpacked)
    return unpacked


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


# --- packages -----------------------------------------------------------------------------


def _installed() -> dict[str, dict[str, str]]:
    """Installed packages by name: the fields of dpkg's database; what they provide too."""
    found = {}
    for text in Path("/var/lib/dpkg/status").read_text().split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][\w-]+): (.*)$", text, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            for name in [*_names(fields.get("Provides", "")), fields["Package"]]:
                if name == fields["Package"] or name not in found:
                    found[name] = fields
    return found


def _names(text: str) -> list[str]:
    return re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]*)", text)


def _closure(installed: dict[str, dict[str, str]]) -> Iterator[str]:
    """NAME=VERSION of what the guest gets."""
    essential = [n for n, f in installed.items() if f.get("Essential") == "yes"]
    todo, seen = [*essential, *_WANTED.split()], set()
    while todo:
        fields = installed.get(todo.pop())
        if fields is None or fields["Package"] in seen:
            continue
        seen.add(fields["Package"])
        todo += _names(fields.get("Depends", "")) + _names(fields.get("Pre-Depends", ""))
    yield from sorted(f"{name}={installed[name]['Version']}" for name in seen)


def _files_of(packages: Iterable[str]) -> Iterator[str]:
    """Paths of all files, below the real directories (/bin is /usr/bin)."""
    for package in packages:
        name = package.partition("=")[0]
        for listing in Path("/var/lib/dpkg/info").glob(f"{name}*.list"):
            if listing.stem.partition(":")[0] == name:
                for line in listing.read_text().splitlines():
                    path = Path(line)
                    if not _SKIPPED.search(line + "/") and os.path.lexists(line):
                        yield str(path.parent.resolve() / path.name)
    for directory in ("/usr/bin", "/usr/sbin"):  # alternatives belong to no package
        yield from (entry.path for entry in os.scandir(directory) if entry.is_symlink())


# --- what is on the disks -----------------------------------------------------------------


def _venv_parts() -> list[Path]:
    [site] = Path(sys.prefix).resolve().glob("lib/python3*/site-packages")
    return [p for p in site.iterdir() if not p.name.startswith(tuple(_NOT_IN_GUEST.split()))]


def _fill_base(stage: Path, unpacked: Path, packages: list[str]) -> None:
    paths = {path for path in _files_of(packages) if path.startswith(("/usr/", "/etc/", "/var/"))}
    for link in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if Path("/", link).is_symlink():
            paths.add(f"/{link}")
    _copy(sorted(paths), stage, recursive=False)
    environment, base = Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()
    _copy([f"/etc/{name}" for name in _ETC.split() if Path("/etc", name).exists()], stage)
    _copy([str(environment / name) for name in ("bin", "pyvenv.cfg")], stage)
    _copy([str(path) for path in _venv_parts()], stage)
    if not base.is_relative_to("/usr"):
        skipped = ["site-packages/*", "test", "*/tests", "*.a"]
        _copy([str(base / name) for name in ("bin", "include", "lib")], stage, without=skipped)
    shutil.copytree(unpacked / "lib" / "modules", stage / "lib" / "modules", dirs_exist_ok=True)
    [version] = (path.name for path in (unpacked / "lib" / "modules").iterdir())
    _as_root(
        ["depmod", "-b", str(stage / "usr" if (stage / "lib").is_symlink() else stage), version]
    )
    _as_root(["ldconfig", "-r", str(stage)])
    for name in _MOUNT_POINTS.split():
        (stage / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (stage / name).chmod(0o1777)
    (stage / "etc/hostname").write_text("cgroup2\n")
    shutil.copy(ROOT / "tools/cgroup2/guest.sh", stage / "trialyard-guest")
    (stage / "trialyard-guest").chmod(0o755)


def _copy(
    paths: list[str], stage: Path, *, recursive: bool = True, without: Iterable[str] = ()
) -> None:
    """The same paths below `stage`, with modes, owners and links."""
    options = ["--recursion" if recursive else "--no-recursion"]
    options += [f"--exclude={pattern}" for pattern in without]
    pack = subprocess.Popen(
        ["tar", "-C", "/", *options, "--null", "-T", "-", "-cf", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert pack.stdin is not None
    unpack = subprocess.Popen(["tar", "-C", str(stage), "-xpf", "-"], stdin=pack.stdout)
    pack.stdin.write(b"\0".join(path.lstrip("/").encode() for path in paths))
    pack.stdin.close()
    if unpack.wait() != 0 or pack.wait() > 1:  # 1: a file changed while it was read
        raise SystemExit("cgroup2: copying into the guest's disk failed")


def _fill_repository(stage: Path, guest_command: str) -> None:
    """What git knows and does not ignore, and the native program; then the command."""
    listed = _output("git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard")
    names = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    native = ROOT / "src/trialyard/_native"
    names += [str(path.relative_to(ROOT)) for path in native.glob("trialyard-*")]
    for name in names:
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, stage / name, follow_symlinks=False)
    settings = {
        "ROOT": str(ROOT),
        "PYTHON": str(Path(sys.prefix).resolve() / "bin" / "python"),
        "COMMAND": guest_command,
    }
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items())
    (stage / ".guest").write_text(text)
