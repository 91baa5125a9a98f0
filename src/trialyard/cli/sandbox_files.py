"""Files that go into a box before its command, and come out of it afterwards.

What a command left may be hostile or too much, and the box may be gone: then the result
stands all the same, and the report says what did not come out.
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trialyard.core.errors import FileAccessError, SandboxError, UserError
from trialyard.core.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Download:
    """What came out of one source. `error` is empty when all of it did."""

    source: str
    target: str
    files: int = 0
    bytes: int = 0
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def pair(text: str, separator: str, flag: str) -> tuple[str, str]:
    """Two words of one argument. Raises `UserError` naming the flag."""
    left, found, right = text.partition(separator)
    if not found or not left:
        raise UserError(f"{flag} {text!r}: write LEFT{separator}RIGHT")
    return left, right


async def upload(sandbox: Sandbox, source: str, target: str) -> None:
    """Copy a file or a folder of the host into the box. Raises `UserError`."""
    path = Path(source)
    try:
        if path.is_dir():
            await sandbox.upload(_files_below(path), directory=target)
        elif path.is_file():
            await sandbox.write(target, path.read_bytes(), mode=path.stat().st_mode & 0o777)
        else:
            raise UserError(f"--upload {source}: no such file or folder")
    except FileAccessError as error:
        raise UserError(f"--upload {source}:{target}: {error}") from error


def _files_below(directory: Path) -> Mapping[str, bytes]:
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in sorted(directory.rglob("*"))
        if file.is_file() and not file.is_symlink()
    }


async def prepare_download(sandbox: Sandbox, source: str) -> None:
    """Let the command find its place: a missing folder is made, for a file the one around it.

    A last part with a dot in it, such as ``report.json``, is taken for a file.
    """
    try:
        await sandbox.stat(source)
        return
    except FileAccessError:
        pass
    name = posixpath.basename(source)
    directory = posixpath.dirname(source) if "." in name else source
    try:
        await sandbox.upload({}, directory=directory or ".")
    except FileAccessError as error:
        raise UserError(f"--download {source}: {error}") from error


async def give(sandbox: Sandbox, user: str, paths: Sequence[str]) -> None:
    """Let another user of a box with root inside write where results are looked for.

    Raises `UserError` when the box knows no such user.
    """
    there = 'for path; do if test -e "$path"; then chown -- "$0" "$path"; fi; done'
    done = await sandbox.run(["sh", "-ec", there, user, *paths])
    if not done.ok:
        text = done.stderr.decode("utf-8", "replace").strip()
        raise UserError(
            f"--user {user}: must be root, a name in the box's /etc/passwd, or a number from 0 to "
            f"65535, and be able to own {', '.join(paths)} ({text})"
        )


async def download(sandbox: Sandbox, source: str, target: str) -> Download:
    """Copy a file or a folder of the box to the host. Never raises for what the box holds."""
    try:
        entry = await sandbox.stat(source)
        destination = Path(target)
        if entry.kind == "directory":
            files = await sandbox.download(source)
            written = {destination / name: data for name, data in files.items()}
        else:
            written = {destination: await sandbox.read(source)}
    except SandboxError as error:
        return Download(source, target, error=str(error))
    try:
        for path, data in written.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    except OSError as error:
        raise UserError(f"--download {source}:{target}: {error}") from error
    return Download(source, target, len(written), sum(map(len, written.values())))
