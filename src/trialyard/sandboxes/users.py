"""Whom a command runs as: names and numbers from the box's own /etc/passwd and /etc/group.

Both files are the box's and may hold anything: they are read up to a bound, and a line that
does not parse is passed over.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trialyard.core.errors import FileAccessError, UserError
from trialyard.sandboxes.protocol import MAX_GROUPS, UserIds
from trialyard.sandboxes.system_files import BOX_UID, HOME, ROOT, USER

MAX_ID = 65_535
MAX_BYTES = 1 << 20

ReadFile = Callable[[str, int], bytes]


@dataclass(frozen=True, slots=True)
class Account:
    """A user of a box, as its own files know it."""

    name: str
    ids: UserIds
    home: str


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    uid: int
    gid: int
    home: str


def find_user(read: ReadFile, user: str | int) -> Account:
    """Look a name or number up in the box. A number need not be listed. Raises `UserError`."""
    number = _number(user)
    is_name = isinstance(user, str) and user and not set("\0:") & set(user)
    if number is None and not is_name:
        raise UserError(f"user {user!r}: must be a name, or a number from 0 to {MAX_ID}")
    for entry in _entries(read):
        if entry.uid == number or (number is None and entry.name == user):
            groups = _groups(read, entry.name)
            return Account(entry.name, UserIds(entry.uid, entry.gid, groups), entry.home)
    if number is None:
        raise UserError(f"user {user!r}: not in the box's /etc/passwd; use a number, or add it")
    return Account(str(number), UserIds(number, number), "/")


def own_user(read: ReadFile, user: str | int) -> None:
    """Accept the one user of an ordinary box, whose commands become nobody else.

    Raises `UserError` for any other.
    """
    if user in (USER, BOX_UID, str(BOX_UID)):
        return
    if find_user(read, user).ids.uid != BOX_UID:
        raise UserError(
            f"user {user!r}: commands of this box run as {USER!r} ({BOX_UID}) alone; acquire the "
            'box with user="root" for commands of other users'
        )


def root_user(read: ReadFile, user: str | int) -> Account | None:
    """Whom a command of a box with root inside becomes; None: root, as it is.

    Raises `UserError`.
    """
    return None if user in (ROOT, 0, "0") else find_user(read, user)


def environment_of(user: Account) -> dict[str, str]:
    """What the user's name and home are, unless the caller says otherwise."""
    return {"HOME": user.home or HOME, "USER": user.name, "LOGNAME": user.name}


def _number(user: str | int) -> int | None:
    if isinstance(user, str) and user.isascii() and user.isdecimal() and len(user) <= 9:
        user = int(user)
    if isinstance(user, bool) or not isinstance(user, int):
        return None
    if not 0 <= user <= MAX_ID:
        raise UserError(f"user {user}: must be a name, or a number from 0 to {MAX_ID}")
    return user


def _lines(read: ReadFile, path: str) -> Iterator[list[str]]:
    try:
        text = read(path, MAX_BYTES).decode("utf-8", "surrogateescape")
    except FileAccessError:
        return
    for line in text.split("\n"):
        yield line.split(":")


def _id(text: str) -> int | None:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        return None
    return int(text) if int(text) <= MAX_ID else None


def _entries(read: ReadFile) -> Iterator[_Entry]:
    for fields in _lines(read, "/etc/passwd"):
        if len(fields) != 7:
            continue
        uid, gid = _id(fields[2]), _id(fields[3])
        if uid is not None and gid is not None and "\0" not in "".join(fields):
            yield _Entry(fields[0], uid, gid, fields[5])


def _groups(read: ReadFile, name: str) -> tuple[int, ...]:
    found = []
    for fields in _lines(read, "/etc/group"):
        gid = _id(fields[2]) if len(fields) == 4 else None
        if gid is not None and name in fields[3].split(","):
            found.append(gid)
    return tuple(found[:MAX_GROUPS])
