"""Names and seeds: content hashes, fresh ids, and derived random streams."""

import hashlib
import json
import random
import secrets
from collections.abc import Mapping
from typing import Any


def content_hash(value: Any) -> str:
    """SHA-256 (hex) of a JSON-able value in canonical form: equal values, equal hash."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def bytes_hash(data: bytes) -> str:
    """SHA-256 (hex) of raw bytes."""
    return hashlib.sha256(data).hexdigest()


def tree_hash(files: Mapping[str, bytes]) -> str:
    """SHA-256 (hex) over a file tree given as path -> content."""
    return content_hash({path: bytes_hash(data) for path, data in files.items()})


def new_id(prefix: str) -> str:
    """A fresh, unguessable id such as ``box-3f9a6c01d2e4``."""
    return f"{prefix}-{secrets.token_hex(6)}"


def derive_seed(root: int, *path: str | int) -> int:
    """A 63-bit seed for the stream named by `path`, independent of every other path."""
    text = "/".join([str(root), *map(str, path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def derive_random(root: int, *path: str | int) -> random.Random:
    """A random stream of its own for `path` (see `derive_seed`)."""
    return random.Random(derive_seed(root, *path))
