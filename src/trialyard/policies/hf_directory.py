"""Model directories in Hugging Face's layout: reading models, writing weights.

Plain Llama models run on our own module (`hf_llama`); every other architecture is
loaded by `transformers` and wrapped. Weights travel as safetensors bytes whose keys
are those of the directory; a tied output matrix is stored once.
"""

import json
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file, save
from torch import Tensor, nn

from trialyard.core.errors import ConfigError, NotFoundError, StoreError
from trialyard.policies.hf_llama import Llama, LlamaShape

WEIGHTS_FILE = "model.safetensors"


class TransformersModel(nn.Module):
    """Any causal model of `transformers` behind the call of `Llama`."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    @property
    def max_positions(self) -> int:
        return int(getattr(self.inner.config, "max_position_embeddings", 2048))

    @property
    def vocabulary_size(self) -> int:
        return int(self.inner.config.vocab_size)

    def forward(self, ids_BT: Tensor, lengths_B: Tensor, chosen_BT: Tensor) -> Tensor:
        """Logits [N, V] at the chosen positions of right-padded rows."""
        positions_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        attention_BT = (positions_T < lengths_B[:, None]).long()
        logits: Tensor = self.inner(input_ids=ids_BT, attention_mask=attention_BT).logits
        return logits[chosen_BT]


Model = Llama | TransformersModel


def read_config(directory: Path) -> dict[str, Any]:
    """The ``config.json`` of a model directory."""
    path = directory / "config.json"
    if not path.is_file():
        raise NotFoundError(f"no model in {directory}: config.json is missing")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    return cast(dict[str, Any], config)


def load_model(directory: Path) -> Model:
    """The model of a directory in float32 on the CPU."""
    shape = LlamaShape.of(read_config(directory))
    if shape is None:
        return _load_transformers(directory)
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise NotFoundError(f"no weights in {directory}: {WEIGHTS_FILE} is missing")
    model = Llama(shape)
    tensors: dict[str, Tensor] = {}
    for path in files:
        tensors |= load_file(path)
    _assign(model, tensors, str(directory))
    return model


def _load_transformers(directory: Path) -> TransformersModel:
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise ConfigError(
            f"{directory} is not a plain Llama model; install: pip install 'trialyard[hf]'"
        ) from error
    inner = AutoModelForCausalLM.from_pretrained(
        directory, local_files_only=True, dtype=torch.float32
    )
    return TransformersModel(inner)


def weights_bytes(model: Model) -> bytes:
    """The weights of a model as safetensors."""
    state = (model.inner if isinstance(model, TransformersModel) else model).state_dict()
    if isinstance(model, TransformersModel):
        for name in getattr(model.inner, "_tied_weights_keys", None) or ():
            if model.inner.config.tie_word_embeddings:
                state.pop(name, None)
    return save({name: tensor.detach().contiguous() for name, tensor in state.items()})


def load_weights(model: Model, weights: bytes, *, origin: str) -> None:
    """Replace the weights of a model; `origin` names them in errors."""
    try:
        tensors = load_tensors(weights)
    except SafetensorError as error:
        raise StoreError(f"{origin} are not safetensors: {error}; publish them again") from error
    _assign(model, tensors, origin)


def _assign(model: Model, tensors: dict[str, Tensor], origin: str) -> None:
    target = model.inner if isinstance(model, TransformersModel) else model
    expected = target.state_dict()
    if isinstance(model, Llama) and model.shape.tied:
        tensors.pop("lm_head.weight", None)
    missing = set(expected) - set(tensors)
    if isinstance(model, TransformersModel):
        missing -= set(getattr(model.inner, "_tied_weights_keys", None) or ())
    wrong = [
        name
        for name, tensor in tensors.items()
        if name not in expected or expected[name].shape != tensor.shape
    ]
    if missing or wrong:
        raise StoreError(
            f"{origin} do not fit the model: missing {sorted(missing)[:3]}, "
            f"unknown or of another shape {sorted(wrong)[:3]}; check config.json"
        )
    unsound = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    if unsound:
        raise StoreError(f"{origin} hold NaN or infinity in {unsound[0]}; they were not loaded")
    target.load_state_dict(tensors, strict=False)
