"""Runs a pytest suite from the grader's directory; runs inside the box.

Theory of operation: candidate and runner share this process, so what leaves it is
strong evidence, not proof. stdin holds one job (marshal). pytest comes from a
read-only layer, tests from the grader's directory; the workspace is last on the path.
No configuration, plug-in or conftest of the workspace is read. Events leave on a
duplicate of stdout, a line each with the nonce. A canary that must fail runs first and
another at a random place, pytest's own functions are compared with what they were after
every test, and comparisons that agree with everything are reported. SIGALRM with its
default action ends a test that hangs; the grader starts a new process for the rest.
"""

import json
import marshal
import os
import random
import signal
import sys
import time

CHANNEL_FD = 198
GUARDED = ("_pytest", "pluggy", "pytest")
STDLIB = (os.path.dirname(os.__file__) + "/", "<frozen ")


class Channel:
    """Where events go; bound before the candidate runs."""

    def __init__(self, nonce):
        try:
            self.fd = os.dup2(1, CHANNEL_FD, inheritable=False)
        except OSError:
            self.fd = os.dup(1)
        self.nonce, self.pid = nonce, os.getpid()
        self.write, self.getpid, self.dumps, self.leave = os.write, os.getpid, json.dumps, os._exit

    def mute(self):
        """Give the candidate /dev/null for 0, 1 and 2."""
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)

    def send(self, kind, **fields):
        if self.getpid() != self.pid:
            self.leave(0)
        line = f"{self.nonce} {kind} {self.dumps(fields)}\n".encode("ascii")
        while line:
            line = line[self.write(self.fd, line) :]


def functions_of(module):
    """Name -> function for a module and its classes, as they are now."""
    found = {}
    for name, value in list(vars(module).items()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            for attribute, method in list(vars(value).items()):
                method = getattr(method, "__func__", method)
                if hasattr(method, "__code__"):
                    found[f"{name}.{attribute}"] = (method, method.__code__)
        elif hasattr(value, "__code__"):
            found[name] = (value, value.__code__)
    return found


def snapshot():
    """The functions of pytest and what it stands on."""
    modules = [m for n, m in list(sys.modules.items()) if n.partition(".")[0] in GUARDED]
    return {module: functions_of(module) for module in modules}


def patched(before):
    """Names of guarded functions that are no longer what they were."""
    for module, functions in before.items():
        now = functions_of(module)
        for name, pair in functions.items():
            if now.get(name) is None or any(
                a is not b for a, b in zip(now[name], pair, strict=True)
            ):
                yield f"{module.__name__}.{name}"


def all_classes(root=object):
    stack, seen = [root], set()
    while stack:
        for sub in type.__subclasses__(stack.pop()):
            if sub not in seen:
                seen.add(sub)
                stack.append(sub)
    return seen


def agrees_with_everything(kind, workdir):
    """Whether instances of a class from the workspace equal an unrelated object."""
    method = vars(kind).get("__eq__")
    code = getattr(method, "__code__", None)
    if code is None or not code.co_filename.startswith(workdir):
        return False
    for plain in (object, float, int, str, list, tuple, dict, set, bytes):
        try:
            return method(plain.__new__(kind), object()) is True
        except TypeError:
            continue
        except BaseException:
            return False
    return False


class ReadGuard:
    """Reports code of the workspace that opens a test module; audit hooks cannot be taken off."""

    def __init__(self, workdir):
        self.workdir, self.files, self.found = workdir + "/", set(), set()
        self.getframe = sys._getframe
        sys.addaudithook(self.hook)

    def hook(self, event, arguments):
        if event != "open" or arguments[0] not in self.files:
            return
        frame = self.getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(STDLIB):
            frame = frame.f_back
        if frame is not None and frame.f_code.co_filename.startswith(self.workdir):
            self.found.add(arguments[0])


class Recorder:
    """The pytest plug-in: statuses by phase, canary, guards."""

    def __init__(self, job, channel):
        self.job, self.channel = job, channel
        self.done = set(job["done"])
        self.before, self.classes = {}, set()
        self.phases, self.alarm = {}, signal.setitimer
        self.guard = ReadGuard(job["workdir"])
        self.canaries = {f"canary-{random.getrandbits(64):x}" for _ in range(2)}

    def pytest_sessionstart(self, session):
        """Everything of pytest's is loaded, nothing of the candidate's is."""
        self.before, self.classes = snapshot(), all_classes()

    def pytest_collectreport(self, report):
        if report.failed:
            self.channel.send("collect", id=report.nodeid, message=last_line(report.longrepr))
        elif report.skipped:
            self.channel.send("collect", id=report.nodeid, message="skipped as a whole")

    def pytest_collection_modifyitems(self, session, items):
        self.guard.files |= {str(item.path) for item in items}
        self.channel.send("collected", ids=[item.nodeid for item in items])
        items[:] = [item for item in items if item.nodeid not in self.done]
        first, other = (Canary.from_parent(session, name=name) for name in self.canaries)
        items.insert(random.SystemRandom().randint(0, len(items)), other)
        items.insert(0, first)

    def pytest_runtest_logstart(self, nodeid, location):
        self.alarm(signal.ITIMER_REAL, self.job["limit_s"])
        if nodeid.rpartition("::")[2] not in self.canaries:
            self.channel.send("start", id=nodeid)

    def pytest_runtest_logreport(self, report):
        self.phases.setdefault(report.nodeid, []).append(report)

    def pytest_runtest_logfinish(self, nodeid, location):
        self.alarm(signal.ITIMER_REAL, 0)
        reports = self.phases.pop(nodeid, [])
        status, message = status_of(reports)
        for name in patched(self.before):
            self.channel.send("tamper", sign="runner-patched", path=name)
        if nodeid.rpartition("::")[2] in self.canaries:
            self.channel.send("canary", status=status)
            return
        duration_s = sum(report.duration for report in reports)
        self.channel.send(
            "result", id=nodeid, status=status, message=message, duration_s=duration_s
        )
        for kind in all_classes() - self.classes:
            self.classes.add(kind)
            if agrees_with_everything(kind, self.job["workdir"]):
                self.channel.send("tamper", sign="comparison-overridden", path=kind.__name__)

    def pytest_sessionfinish(self, session, exitstatus):
        for path in self.guard.found:
            self.channel.send("tamper", sign="tests-read", path=path)
        self.channel.send("end", code=int(exitstatus))


def status_of(reports):
    """One status of a test's phases; a failure outside the call is an error."""
    status, message = "error", "no report"
    for report in reports:
        expected = hasattr(report, "wasxfail")
        if report.failed:
            phase = "failed" if report.when == "call" else "error"
        elif report.skipped:
            phase = "xfailed" if expected else "skipped"
        else:
            phase = "xpassed" if expected else "passed"
        if report.when == "setup" or phase == "error" or report.when == "call":
            status = phase
        if phase in ("failed", "error", "skipped") and report.longrepr is not None:
            message = last_line(report.longrepr)
        elif phase == "passed":
            message = ""
    return status, message


def last_line(longrepr):
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message)[:300]
    if isinstance(longrepr, tuple):
        return str(longrepr[-1])[:300]
    return str(longrepr)[-300:]


def main():
    job = marshal.loads(sys.stdin.buffer.read())
    channel = Channel(job["nonce"])
    sys.path[:] = [*sys.path, job["pytest"]]
    import pytest

    channel.mute()
    channel.send("ready")  # from here on the candidate may be to blame

    class CanaryItem(pytest.Item):
        def runtest(self):
            assert time is None, "this test must fail"

        def reportinfo(self):
            return self.path, 0, self.name

    global Canary
    Canary = CanaryItem
    sys.path.extend([job["tests"], job["workdir"]])
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    arguments = [
        *("-c", "/dev/null", "--rootdir", job["tests"], "--confcutdir", job["tests"]),
        *("-p", "no:cacheprovider", "-p", "no:faulthandler", "--import-mode=importlib"),
        *("-s", "-q", "--color=no", "--tb=short", "--no-header", "--no-summary"),
        *[os.path.join(job["tests"], path) for path in job["paths"]],
    ]
    os.chdir(job["workdir"])
    recorder = Recorder(job, channel)
    try:
        pytest.main(arguments, plugins=[recorder])
    finally:
        os._exit(0)


main()
