"""Runs the sandbox tests on a kernel with cgroup version 2: `make test-cgroup2`.

    run.py [--accelerator kvm|tcg] [--time-limit-s N] [--command SHELL] [-- PYTEST-ARGUMENT...]

Boots Debian's cloud kernel in qemu (KVM where it works, else software emulation), on a disk
made by image.py, and lets guest.sh run pytest there. The output of the guest is streamed; the
exit status is pytest's, 3 when the guest broke, 124 when the time was up. Everything that is
made lies below build/cgroup2. Needs no privilege once the Debian packages are there.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import image

_CONTRACT = "test_sandbox test_limits test_execution_cases"
_UNIT = "test_hierarchies test_cgroups test_limits test_commands test_lifecycle test_isolation"
TESTS = (
    *(f"tests/contract/{name}.py" for name in _CONTRACT.split()),
    *(f"tests/unit/sandboxes/{name}.py" for name in _UNIT.split()),
    "tests/probes",
)
"""What depends on the kernel."""
TESTS_IN_CONTAINER = ("tests/contract/test_sandbox.py", "-k", "namespace")
"""Below a root that is not the kernel's, and with processes in it."""
PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mke2fs": "e2fsprogs",
    "depmod": "kmod",
    "bwrap": "bubblewrap",
    "setpriv": "util-linux",
}
PROBE_TIME_LIMIT_S = 15
TIME_SCALE = {"kvm": 2, "tcg": 10}
"""How much slower than this machine the guest may be: the tests multiply their time-outs."""


def say(text: str) -> None:
    print(f"cgroup2: {text}", flush=True)


def install_missing() -> None:
    """Debian packages, through apt-get; without root this says which."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for tool, name in PACKAGES.items() if not shutil.which(tool, path=path)]
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SystemExit(
            f"cgroup2: these Debian packages are missing: {' '.join(missing)}. "
            f"Install them: sudo {' '.join(command)}"
        )
    say(f"installing Debian packages: {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["apt-get", "update", "-qq"], command):
        subprocess.run(step, env=environment, stdout=subprocess.DEVNULL, check=True)


def qemu(disks: image.Disks, accelerator: str, words: str, result: Path) -> list[str]:
    """The command line of one boot. The kernel has NVMe and ext4 built in: no initramfs."""
    drives = []
    for name, path in (("base", disks.base), ("repository", disks.repository)):
        drives += [
            *("-drive", f"file={path},format=raw,if=none,id={name},snapshot=on"),
            *("-device", f"nvme,drive={name},serial={name}"),
        ]
    return [
        *("setpriv", "--pdeathsig", "KILL", "nice", "-n", "19"),
        "qemu-system-x86_64",
        *("-accel", "kvm" if accelerator == "kvm" else "tcg,thread=multi"),
        *("-cpu", "host" if accelerator == "kvm" else "max"),
        *("-smp", "2", "-m", "4096", "-nodefaults", "-no-reboot", "-display", "none"),
        *("-serial", "stdio", "-serial", f"file:{result}"),
        *drives,
        *("-kernel", str(disks.kernel)),
        "-append",
        "root=/dev/nvme0n1 rw init=/trialyard-guest console=ttyS0 quiet loglevel=4 panic=-1 "
        f"edd=off mitigations=off {words}",
    ]


def boot(argv: list[str], log: Path, time_limit_s: float) -> bool:
    """Streams the guest's console; False when the time was up. Ctrl-C ends the guest."""
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    timer = threading.Timer(time_limit_s, process.kill)
    timer.start()
    started_s = time.monotonic()
    try:
        with log.open("wb") as file:
            while data := os.read(process.stdout.fileno(), 1 << 16):
                file.write(data)
                sys.stdout.write(data.decode("utf-8", "replace").replace("\r", ""))
                sys.stdout.flush()
        process.wait()
    finally:
        timer.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
    return time.monotonic() - started_s < time_limit_s


def choose_accelerator(disks: image.Disks) -> str:
    """KVM only where it really boots: some hosts have a /dev/kvm that never gets there."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    say("trying KVM")
    result = disks.directory / "probe"
    result.unlink(missing_ok=True)
    argv = qemu(disks, "kvm", "trialyard.probe", result)
    boot(argv, disks.directory / "probe.log", PROBE_TIME_LIMIT_S)
    works = result.exists() and b"probe=ok" in result.read_bytes()
    say("KVM works" if works else "KVM does not boot; software emulation it is")
    return "kvm" if works else "tcg"


def pytest_commands(arguments: list[str]) -> str:
    """What the guest runs: the tests asked for; else all, and then some in a container."""
    pytest = '"$PYTHON" -m pytest -p no:cacheprovider -v --tb=short --timeout=$((60 * SCALE)) '
    if arguments:
        return pytest + shlex.join(arguments)
    inside = pytest + shlex.join(TESTS_IN_CONTAINER)
    return (
        f"{pytest}{shlex.join(TESTS)}; suite=$?; in_container {shlex.quote(inside)} && exit $suite"
    )


def read_result(path: Path) -> dict[str, str]:
    """NAME=VALUE lines that the guest wrote on its second serial line."""
    text = path.read_text(errors="replace") if path.exists() else ""
    pairs = (line.strip().partition("=") for line in text.splitlines())
    return {name: value for name, _, value in pairs if name}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", choices=("kvm", "tcg"))
    parser.add_argument("--time-limit-s", type=float, default=5400.0)
    parser.add_argument("--command", help="run this in the guest, not pytest")
    parser.add_argument("pytest", nargs="*", default=[])
    options = parser.parse_args()
    install_missing()
    command = options.command or pytest_commands(options.pytest)
    disks = image.build(say, guest_command=command)
    accelerator = options.accelerator or choose_accelerator(disks)
    scale = int(os.environ.get("TRIALYARD_TIME_SCALE", str(TIME_SCALE[accelerator])))
    say(f"booting {disks.kernel.name} with {accelerator}; time-outs of the tests times {scale}")
    result = disks.directory / "result"
    result.unlink(missing_ok=True)
    started_s = time.monotonic()
    argv = qemu(disks, accelerator, f"trialyard.scale={scale}", result)
    in_time = boot(argv, disks.directory / "console.log", options.time_limit_s)
    found = read_result(result)
    say(
        f"kernel {found.get('kernel', '?')} ({accelerator}), controllers "
        f"{found.get('controllers', '?')}: {found.get('summary', 'no result')}; "
        f"{time.monotonic() - started_s:.0f} s"
    )
    if not in_time:
        say(f"the time limit of {options.time_limit_s:.0f} s was reached")
        return 124
    return int(found.get("status", "3"))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
