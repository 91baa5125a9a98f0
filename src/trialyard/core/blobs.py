"""Blobs: content-addressed bytes."""

from typing import Protocol


class BlobStore(Protocol):
    """Bytes by SHA-256. Writes are atomic and durable before they return."""

    def put(self, data: bytes) -> str:
        """Store and return the digest (hex). Storing equal bytes twice is one blob."""

    def get(self, digest: str) -> bytes:
        """Bytes of a digest, verified. Raises `NotFoundError`, `StoreError` when corrupt."""

    def has(self, digest: str) -> bool:
        """Whether the blob is there."""

    def remove(self, digest: str) -> None:
        """Forget a blob; missing is fine."""
