"""Calls a candidate's function and streams its values; runs inside the box.

Theory of operation: this process belongs to the candidate, so nothing it says is
believed; it only computes values, which the grader compares elsewhere. Expected
values never come here. stdin holds one job (marshal, written by the grader: trusted,
and faster to read than anything else); results leave on a duplicate of stdout, a line
each. While the candidate runs, 0, 1 and 2 are /dev/null. A time limit is SIGALRM with
its default action, which no except clause can swallow. Start-up is what most
gradings pay for: only built-in modules are imported.
"""

import marshal
import posix
import sys
import time

import _signal

MAX_DEPTH = 64
MAX_HEX_DIGITS = 4300
FLUSH_FDS = (0, 1, 2)
CHANNEL_FD = 199
WHOLE = slice(None)
TAGS = {list: "l", tuple: "t", set: "s", frozenset: "z"}


class NotPlain(Exception):
    """The value may not cross: wrong type, too deep or too large."""


class Encoder:
    """JSON text of a plain value, as trialyard.core.plain defines it.

    A subclass of a plain type is reduced to the plain value below it by the plain
    type's own methods, so overridden comparisons never leave the process.
    """

    def __init__(self, max_chars):
        self.left = max_chars
        self.parts = []

    def put(self, text):
        self.left -= len(text)
        if self.left < 0:
            raise NotPlain("TooLarge: the value is too large to be compared")
        self.parts.append(text)

    def value(self, value, depth=MAX_DEPTH):
        if depth == 0:
            raise NotPlain("TooDeep: the value is nested too deeply")
        kind = type(value)
        if value is None:
            self.put("null")
        elif kind is bool:
            self.put("true" if value else "false")
        elif issubclass(kind, int):
            self.integer(int.__add__(value, 0))
        elif issubclass(kind, str):
            self.put(quote(str.__getitem__(value, WHOLE)))
        elif issubclass(kind, float):
            self.put('["f","' + float.__repr__(value) + '"]')
        elif issubclass(kind, (list, tuple, set, frozenset)):
            self.container(value, kind, depth)
        elif issubclass(kind, dict):
            self.mapping(value, depth)
        elif issubclass(kind, bytes):
            self.put('["b","' + base64(bytes.__getitem__(value, WHOLE)) + '"]')
        elif issubclass(kind, complex):
            real, imag = complex.real.__get__(value), complex.imag.__get__(value)
            self.put('["c","' + repr(real) + '","' + repr(imag) + '"]')
        else:
            raise NotPlain(f"NotPlain: a value of type {kind.__name__} is not plain data")

    def integer(self, value):
        if -(1 << 53) < value < 1 << 53:
            self.put(int.__repr__(value))
        elif value.bit_length() > 4 * (MAX_HEX_DIGITS - 3):
            raise NotPlain("TooLarge: the integer is too long to be compared")
        else:
            self.put('["i","' + hex(value) + '"]')

    def container(self, value, kind, depth):
        plain = next(plain for plain in TAGS if issubclass(kind, plain))
        self.put('["' + TAGS[plain] + '",[')
        comma = False
        for item in plain.__iter__(value):
            if comma:
                self.put(",")
            comma = True
            self.value(item, depth - 1)
        self.put("]]")

    def mapping(self, value, depth):
        self.put('["d",[')
        comma = False
        for key, item in dict.items(value):
            self.put(",[" if comma else "[")
            comma = True
            self.value(key, depth - 1)
            self.put(",")
            self.value(item, depth - 1)
            self.put("]")
        self.put("]]")


def quote(text):
    """JSON string in ASCII."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return '"' + text + '"'
    out = []
    for char in text:
        code = ord(char)
        if char in '"\\':
            out.append("\\" + char)
        elif 32 <= code < 127:
            out.append(char)
        elif code < 0x10000:
            out.append(f"\\u{code:04x}")
        else:
            code -= 0x10000
            out.append(f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}")
    return '"' + "".join(out) + '"'


def base64(data):
    from binascii import b2a_base64

    return b2a_base64(data, newline=False).decode("ascii")


def describe(error, path):
    """One line: type, message and, where known, the candidate's own line."""
    try:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        text = f"{type(error).__name__}: {said[:300]}"
    except BaseException:
        text = type(error).__name__
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == path:
            line = frame.tb_lineno
        frame = frame.tb_next
    return f"{text} (line {line})" if type(line) is int else text


def read_all(fd):
    chunks = []
    while chunk := posix.read(fd, 1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


def module_name(path, root):
    """Dotted name of a file below the root when it lies in packages, else its bare name."""
    name = path.rpartition("/")[2].removesuffix(".py")
    folder = path.rpartition("/")[0]
    while len(folder) > len(root) and is_file(folder + "/__init__.py"):
        name = folder.rpartition("/")[2] + "." + name
        folder = folder.rpartition("/")[0]
    return name, folder or "/"


def is_file(path):
    try:
        posix.stat(path)
    except OSError:
        return False
    return True


def load(path):
    """The candidate's module, executed from its source (never from cached bytecode)."""
    root = posix.getcwd()
    name, folder = module_name(path, root)
    sys.path.append(folder)
    if folder != root:
        sys.path.append(root)
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    source = read_all(fd)
    posix.close(fd)
    module = type(sys)(name)
    module.__file__ = path
    module.__package__ = name.rpartition(".")[0]
    sys.modules[name] = module
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    return module


class Runner:
    """One job. What it needs later is bound before the candidate runs, so that honest
    monkeypatching in the candidate does not break it."""

    def __init__(self, job):
        self.nonce, self.path, self.function = job["nonce"], job["path"], job["function"]
        self.limit_s, self.max_chars = job["limit_s"], job["max_chars"]
        self.channel = open_channel()
        self.pid, self.getpid, self.write = posix.getpid(), posix.getpid, posix.write
        self.clock, self.timer, self.leave = time.perf_counter, _signal.setitimer, posix._exit
        self.namespace, self.setups, self.started_s = {}, set(), 0.0

    def start(self):
        self.started_s = self.clock()
        self.timer(_signal.ITIMER_REAL, self.limit_s)

    def send(self, kind, index, text):
        """Stop the time limit and say one line."""
        self.timer(_signal.ITIMER_REAL, 0)
        if self.getpid() != self.pid:  # a child that the candidate forked
            self.leave(0)
        elapsed_s = self.clock() - self.started_s if self.started_s else 0.0
        line = f"{self.nonce} {kind} {index} {elapsed_s:.6f} {text}\n".encode("ascii")
        while line:
            line = line[self.write(self.channel, line) :]

    def load(self):
        self.send("ready", -1, "null")  # from here on the candidate may be to blame
        self.start()
        try:
            self.namespace = load(self.path).__dict__
            if self.function and self.function not in self.namespace:
                raise NameError(f"{self.path.rpartition('/')[2]} defines no {self.function!r}")
        except BaseException as error:
            self.send("import", -1, quote(describe(error, self.path)))
            self.leave(0)
        self.send("loaded", -1, "null")

    def run(self, index, args, kwargs, expression, setup):
        self.start()
        try:
            value = self.compute(args, kwargs, expression, setup)
            encoder = Encoder(self.max_chars)
            encoder.value(value)
            kind, text = "value", "".join(encoder.parts)
        except NotPlain as error:
            kind, text = "error", quote(str(error))
        except BaseException as error:
            kind, text = "error", quote(describe(error, self.path))
        self.send(kind, index, text)

    def compute(self, args, kwargs, expression, setup):
        if setup and setup not in self.setups:
            self.setups.add(setup)
            exec(compile(setup, "<setup>", "exec", dont_inherit=True), self.namespace)
        if expression:
            code = compile(expression, "<case>", "eval", dont_inherit=True)
            return eval(code, self.namespace)
        return self.namespace[self.function](*args, **kwargs)


def main():
    job = marshal.loads(read_all(0))
    runner = Runner(job)
    runner.load()
    for case in job["cases"]:
        runner.run(*case)
    runner.leave(0)


def open_channel():
    """Duplicate stdout out of harm's way, then point 0, 1 and 2 at /dev/null."""
    try:
        channel = posix.dup2(1, CHANNEL_FD, inheritable=False)
    except OSError:
        channel = posix.dup(1)
    null = posix.open("/dev/null", posix.O_RDWR)
    for fd in FLUSH_FDS:
        posix.dup2(null, fd)
    posix.close(null)
    return channel
