"""Small model directories for tests."""

from pathlib import Path

import torch

from trialyard.policies.hf_directory import load_model, weights_bytes
from trialyard.policies.hf_tiny import create_tiny_model

WORDS = ["sum", "of", "list", "sorted(", "v", ")", "[", "]", "+", "1", "2", "return", "if", "for"]
PIECE = r"\w+\(?|[^\s\w]"


def tiny_directory(
    directory: Path, *, seed: int = 0, max_positions: int = 64, d_model: int = 16
) -> Path:
    """A tiny model whose every matrix is random, so that attention matters."""
    create_tiny_model(
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
    model = load_model(directory)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.4, generator=generator)
    (directory / "model.safetensors").write_bytes(weights_bytes(model))
    return directory
