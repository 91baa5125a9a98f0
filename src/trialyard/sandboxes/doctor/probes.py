"""Six small hostile programs and a normal one, for any box that has Python.

A program says CONTAINED last, after one ESCAPED line for each thing that it could do. The
normal program runs first: a box in which nothing works contains everything.
"""

from collections.abc import Callable
from dataclasses import dataclass

from trialyard.core.sandbox import ExecResult, ExecStatus

_PROLOGUE = """
import ctypes, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def escaped(what): print("ESCAPED", what)
def call(number, *words): return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, words))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
"""
_CAPABILITIES = """
held = int(status["CapEff"], 16) | int(status["CapBnd"], 16) | int(status["CapPrm"], 16)
allowed = int(sys.argv[1], 16)
if held & ~allowed: escaped("capabilities " + hex(held & ~allowed))
if status["NoNewPrivs"].strip() != "1": escaped("new privileges possible")
if status["Seccomp"].strip() != "2": escaped("no seccomp filter")
for line in open("/proc/self/uid_map"):
    first, host, count = map(int, line.split())
    if host == 0: escaped("the host's root is inside")
"""
_PID_1 = """
if libc.ptrace(16, 1, 0, 0) == 0: escaped("attached to PID 1")
for name in ("mem", "environ", "maps", "fd/3"):
    try: open("/proc/1/" + name, "rb").read(1)
    except OSError: continue
    escaped("read " + name + " of PID 1")
for pid in (1, int(sys.argv[1])):
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
"""
_HOST_FILES = """
path = sys.argv[1]
for start in ("", "/proc/1/root", "/proc/self/root", "/host", "/oldroot", "../" * 40 + "."):
    try: open(start + path).read()
    except OSError: continue
    escaped("read a file of the host at " + start + path)
for path in ("/etc/shadow", "/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmsg"):
    try: data = open(path, "rb").read(16)
    except OSError: continue
    if data: escaped("read " + path)
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/usr/x", "/dev/x"):
    try: os.open(path, os.O_WRONLY | os.O_CREAT)
    except OSError: continue
    escaped("opened " + path + " for writing")
"""
_KERNEL = """
machine = os.uname().machine
unshare, chroot = (272, 161) if machine == "x86_64" else (97, 51)
os.makedirs("/tmp/m", exist_ok=True)
for kind in (b"tmpfs", b"proc", b"sysfs", b"cgroup", b"cgroup2", b"mqueue"):
    if libc.mount(kind, b"/tmp/m", kind, 0, None) == 0: escaped("mounted " + kind.decode())
if libc.mount(None, b"/", None, 32 | 4096, None) == 0: escaped("remounted the root")
for place in (b"/proc/sys", b"/proc/keys", b"/dev", b"/usr"):
    if libc.umount2(place, 2) == 0: escaped("unmounted " + place.decode())
for flag in (0x10000000, 0x20000, 0x40000000):
    if call(unshare, flag) == 0: escaped("a namespace of its own, " + hex(flag))
for name, number in (("fsopen", 430), ("open_tree", 428), ("io_uring_setup", 425)):
    if call(number, 0, 0, 0) >= 0 or ctypes.get_errno() not in (1, 38): escaped(name)
for family in (38, 40, 17):
    if libc.socket(family, 3 if family == 17 else 5 if family == 38 else 1, 0) >= 0:
        escaped("a socket of family " + str(family))
"""
_NETWORK = """
port, name = int(sys.argv[1]), sys.argv[2]
interfaces = [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]]
if len(open("/proc/net/route").readlines()) > 1: escaped("a route")
for place in (("127.0.0.1", port), ("169.254.169.254", 80), ("192.0.2.1", 80), ("10.0.0.1", 80)):
    with socket.socket() as client:
        client.settimeout(0.3)
        if client.connect_ex(place) == 0: escaped("connected to " + place[0])
with socket.socket(socket.AF_UNIX) as client:
    if client.connect_ex("\\0" + name) == 0: escaped("connected to a socket name of the host")
"""
_MEMORY = """
kept = []
while True: kept.append(bytearray(b"x") * (8 << 20))
"""
_NORMAL = """
import subprocess, tempfile
with tempfile.TemporaryDirectory() as directory:
    open(directory + "/x", "w").write("x" * 100000)
    subprocess.run(["ls", "-l", directory], check=True, stdout=subprocess.DEVNULL)
print("works")
sys.exit(7)
"""


def _contained(result: ExecResult) -> bool:
    return result.ok and result.stdout.endswith(b"CONTAINED\n") and b"ESCAPED" not in result.stdout


def _out_of_memory(result: ExecResult) -> bool:
    return result.status is ExecStatus.OOM


def _worked(result: ExecResult) -> bool:
    return result.exit_code == 7 and result.stdout == b"works\n"


@dataclass(frozen=True, slots=True)
class Probe:
    """`holds` judges what the supervisor saw."""

    name: str
    program: str
    holds: Callable[[ExecResult], bool] = _contained

    @property
    def source(self) -> str:
        end = '\nprint("CONTAINED")\n' if self.holds is _contained else ""
        return _PROLOGUE + self.program + end


PROBES = (
    Probe("normal work", _NORMAL, _worked),
    Probe("capabilities", _CAPABILITIES),
    Probe("PID 1", _PID_1),
    Probe("host files", _HOST_FILES),
    Probe("mounts and kernel", _KERNEL),
    Probe("network", _NETWORK),
    Probe("memory bomb", _MEMORY, _out_of_memory),
)
"""The bomb is last: it takes its box along."""
