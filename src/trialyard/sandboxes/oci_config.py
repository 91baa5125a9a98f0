"""config.json of a box for an OCI runtime: what bubblewrap's arguments and our BPF say, as JSON.

Everything but the host's uids is the same for all boxes of one kind. The tree is ready when
the runtime starts: nothing is mounted but a new /proc, and /dev again, which keeps the runtime
from making devices of its own.
"""

import os
from collections.abc import Iterable
from typing import Any

from trialyard.core.sandbox import BoxUser, Limits
from trialyard.sandboxes.plan import INIT_PATH, MASKED_PROC, READ_ONLY_PROC, ROOT_CAPABILITIES
from trialyard.sandboxes.seccomp_rules import (
    REFUSED_ERRNO,
    UNKNOWN_CALL_ERRNO,
    Rule,
    call_rules,
    other_ioctl_rules,
    terminal_input_rules,
)
from trialyard.sandboxes.syscalls import NAMES_BY_NUMBER
from trialyard.sandboxes.system_files import BOX_UID, HOME

Json = dict[str, Any]
_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_CAPABILITY_SETS = ("bounding", "effective", "permitted")
_ALLOW: Json = {"action": "SCMP_ACT_ALLOW"}
_REFUSE: Json = {"action": "SCMP_ACT_ERRNO", "errnoRet": REFUSED_ERRNO}
_MASKED = (
    "kcore", "kmsg", "kpagecount", "kpageflags", "latency_stats", "sched_debug",
    "slabinfo", "timer_list", "timer_stats", "vmallocinfo",
)  # fmt: skip
_READ_ONLY = ("bus", "fs", "irq", "sysrq-trigger")


def box_config(
    tree: str, user_namespace: str, limits: Limits, maps: list[Json], user: BoxUser
) -> Json:
    """The configuration of a box whose tree and user namespace lie at these paths.

    `maps` are the id mappings that the user namespace has: some runtimes cannot ask it.
    """
    uid, capabilities = BOX_UID, list[str]()
    if user == "root":
        uid, capabilities = 0, [f"CAP_{name}" for name in ROOT_CAPABILITIES]
    return {
        "ociVersion": "1.0.2",
        "hostname": "box",
        "root": {"path": tree},
        "process": {
            "terminal": False,
            "user": {"uid": uid, "gid": uid},
            "args": [INIT_PATH, "init", "moved"],
            "env": [f"HOME={HOME}"],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(_CAPABILITY_SETS, capabilities),
            "rlimits": [
                _rlimit("RLIMIT_NOFILE", limits.open_files),
                _rlimit("RLIMIT_CORE", 0),
            ],
        },
        "mounts": [
            {
                "destination": "/proc",
                "type": "proc",
                "source": "proc",
                "options": ["nosuid", "nodev", "noexec"],
            },
            {
                "destination": "/dev",
                "type": "bind",
                "source": f"{tree}/dev",
                "options": ["rbind", "ro", "nosuid", "noexec"],
            },
        ],
        "linux": {
            "namespaces": [
                {"type": "user", "path": user_namespace},
                *({"type": name} for name in ("pid", "network", "ipc", "uts", "mount", "cgroup")),
            ],
            "uidMappings": maps,
            "gidMappings": maps,
            "maskedPaths": [f"/proc/{name}" for name in (*MASKED_PROC, *_MASKED)],
            "readonlyPaths": [f"/proc/{name}" for name in (*READ_ONLY_PROC, *_READ_ONLY)],
            "seccomp": seccomp_profile(),
        },
    }


def _rlimit(name: str, value: int) -> Json:
    return {"type": name, "hard": value, "soft": value}


def seccomp_profile() -> Json:
    """The rules of every box as an OCI seccomp profile; a foreign ABI kills."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": UNKNOWN_CALL_ERRNO,
        "architectures": [_ARCHITECTURES[os.uname().machine]],
        "syscalls": [
            *_unconditional(call_rules()),
            *(_conditional(rule) for rule in call_rules() if rule.when),
            *(_conditional(rule) for rule in (*other_ioctl_rules(), *terminal_input_rules())),
        ],
    }


def _name(call: str | int) -> str:
    return call if isinstance(call, str) else NAMES_BY_NUMBER[call]


def _unconditional(rules: Iterable[Rule]) -> list[Json]:
    plain = [rule for rule in rules if not rule.when]
    allowed = [_name(rule.call) for rule in plain if rule.allow]
    refused = [_name(rule.call) for rule in plain if not rule.allow]
    return [
        {"names": allowed, **_ALLOW},
        {"names": refused, **_REFUSE},
    ]


def _conditional(rule: Rule) -> Json:
    """One entry for each rule: runtimes take several conditions on one argument for "or"."""
    return {
        "names": [_name(rule.call)],
        **(_ALLOW if rule.allow else {**_REFUSE, "errnoRet": rule.errno}),
        "args": [
            {"index": it.argument, "value": it.value, "op": "SCMP_CMP_EQ"}
            if it.mask is None
            else {
                "index": it.argument,
                "value": it.mask,
                "valueTwo": it.value,
                "op": "SCMP_CMP_MASKED_EQ",
            }
            for it in rule.when
        ],
    }
