"""Start-up code of a zygote, run by ``-c`` in a namespace of its own (see native/zygote.c).

``posix.fork`` returns only in a fork that is confined to its box already. It reads what to run
from descriptor 3 and then behaves as an interpreter that was started with these arguments.
But for the warm imports that were asked for, nothing stays imported that a bare interpreter
does not hold anyway.
"""

import gc
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

IMPORTS: "tuple[tuple[str, str], ...]" = globals().get("IMPORTS", ())
"""Modules to import ahead, and the directory that each comes from, which no box can write."""


def become() -> "tuple[CodeType, dict[str, Any]]":
    """Read argc, argv and env; returns the program as (code, namespace)."""
    data = b""
    while chunk := posix.read(3, 65536):
        data += chunk
    posix.close(3)
    words = data.split(b"\0")[:-1]
    argc = int(words[0])
    argv = [word.decode("utf-8", "surrogateescape") for word in words[1 : argc + 1]]
    environ = dict(entry.split(b"=", 1) for entry in words[argc + 1 :])
    posix.environ.clear()
    posix.environ.update(environ)
    if "os" in sys.modules:
        own = sys.modules["os"].environ._data
        own.clear()
        own.update(environ)
    at = next(i for i in range(1, argc) if not argv[i].startswith("-") or argv[i] == "-c")
    sys.orig_argv[:] = argv
    sys.argv[:] = argv[at:]
    main = sys.modules["__main__"].__dict__
    if argv[at] == "-c":
        del sys.argv[1]
        return compile(argv[at + 1], "<string>", "exec", dont_inherit=True), main
    path = argv[at]
    if not path.startswith("/"):
        path = f"{posix.getcwd()}/{path.removeprefix('./')}"
    main["__file__"] = path
    main["__cached__"] = None
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    source = b""
    while chunk := posix.read(fd, 1 << 20):
        source += chunk
    posix.close(fd)
    return compile(source, path, "exec", dont_inherit=True), main


def run() -> None:
    """Run the program; errors end it as they end any interpreter, without our own frames."""
    try:
        code, namespace = become()
    except OSError as error:
        where = f"can't open file {error.filename!r}"
        sys.stderr.write(f"{sys.executable}: {where}: [Errno {error.errno}] {error.strerror}\n")
        raise SystemExit(2) from None
    except (SyntaxError, ValueError) as error:
        sys.excepthook(type(error), error.with_traceback(None), None)
        raise SystemExit(1) from None
    try:
        exec(code, namespace)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - as every interpreter does at its top
        ours = error.__traceback__
        trace = ours.tb_next if ours else None
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        interrupted = isinstance(error, KeyboardInterrupt)
    else:
        return
    if interrupted:
        import _signal  # type: ignore[import-not-found]

        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        posix.kill(posix.getpid(), _signal.SIGINT)
    raise SystemExit(1)


def warm_up() -> None:
    """Import what is to be warm; the path is as before afterwards."""
    for name, directory in IMPORTS:
        sys.path.insert(0, directory)
        __import__(name)
        del sys.path[0]
    sys.path_importer_cache.clear()


if __name__ == "zygote":
    warm_up()
    gc.collect()
    gc.freeze()
    if not IMPORTS:
        del sys.modules["gc"]
    if posix.fork() == 0:
        run()
