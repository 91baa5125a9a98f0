"""Small model directories for tests."""

from pathlib import Path

from trialyard.policies.hf_tiny import create_tiny_model

WORDS = ["sum", "of", "list", "sorted(", "v", ")", "[", "]", "+", "1", "2", "return", "if", "for"]
PIECE = r"\w+\(?|[^\s\w]"


def tiny_directory(
    directory: Path, *, seed: int = 0, max_positions: int = 64, d_model: int = 16
) -> Path:
    return create_tiny_model(
        directory,
        WORDS,
        PIECE,
        seed,
        d_model=d_model,
        layers=2,
        heads=2,
        ff=24,
        max_positions=max_positions,
    )
