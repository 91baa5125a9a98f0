"""Llama-shaped causal models in plain torch, under the names of a Hugging Face state dict.

One module serves the learner (`Llama`, whole sequences) and, fused, the sampler
(`hf_rows`). RMSNorm (arXiv 1910.07467), RoPE in the half-split layout (2104.09864),
SwiGLU (2002.05202), grouped-query attention (2305.13245). Anything else a config
asks for is refused by `LlamaShape.of`, never approximated.

Shapes: B rows, T positions, D model width, H heads, K key-value heads, E head width,
V vocabulary, N selected positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The numbers that define a Llama-shaped model."""

    vocabulary_size: int
    d_model: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    rms_eps: float
    rope_theta: float
    max_positions: int
    tied: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "LlamaShape | None":
        """Shape of a ``config.json``; None when the model is not plain Llama."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        plain = (
            config.get("model_type") == "llama"
            and config.get("hidden_act", "silu") == "silu"
            and not config.get("attention_bias", False)
            and not config.get("mlp_bias", False)
            and rope.get("rope_type", rope.get("type", "default")) == "default"
        )
        if not plain:
            return None
        heads = int(config["num_attention_heads"])
        return cls(
            vocabulary_size=int(config["vocab_size"]),
            d_model=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            ff=int(config["intermediate_size"]),
            rms_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta", 10_000.0)),
            max_positions=int(config.get("max_position_embeddings", 2048)),
            tied=bool(config.get("tie_word_embeddings", False)),
        )


def rope_angles(shape: LlamaShape, *, device: torch.device | None = None) -> Tensor:
    """Angles ``position * theta^(-2i/E)``, shape [max_positions, E/2], computed in float32."""
    steps = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=device)
    frequencies = 1.0 / (shape.rope_theta ** (steps / shape.head_dim))
    positions = torch.arange(shape.max_positions, dtype=torch.float32, device=device)
    return torch.outer(positions, frequencies)


def rotate(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Apply rotary positions in the half-split layout."""
    first, second = x_BHTE.chunk(2, dim=-1)
    return x_BHTE * cos_TE + torch.cat((-second, first), dim=-1) * sin_TE


class Attention(nn.Module):
    """Causal grouped-query attention over whole sequences."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.d_model, width, bias=False)
        self.k_proj = nn.Linear(shape.d_model, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.d_model, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.d_model, bias=False)

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
        batch, length, _ = x_BTD.shape

        def split(x: Tensor) -> Tensor:
            return x.view(batch, length, -1, self.shape.head_dim).transpose(1, 2)

        q = rotate(split(self.q_proj(x_BTD)), cos_TE, sin_TE)
        k = rotate(split(self.k_proj(x_BTD)), cos_TE, sin_TE)
        v = split(self.v_proj(x_BTD))
        grouped = self.shape.kv_heads != self.shape.heads
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        y: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))
        return y


class FeedForward(nn.Module):
    """SwiGLU: ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.d_model, shape.ff, bias=False)
        self.up_proj = nn.Linear(shape.d_model, shape.ff, bias=False)
        self.down_proj = nn.Linear(shape.ff, shape.d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        y: Tensor = self.down_proj(functional.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
        return y


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.d_model, eps=shape.rms_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.d_model, eps=shape.rms_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_TE, sin_TE)
        y: Tensor = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return y


class Trunk(nn.Module):
    """Embedding, layers and the last norm."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary_size, shape.d_model)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.d_model, eps=shape.rms_eps)
        angles = torch.cat((rope_angles(shape), rope_angles(shape)), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        length = ids_BT.shape[1]
        cos_TE, sin_TE = self.cos[:length], self.sin[:length]
        x_BTD = self.embed_tokens(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, cos_TE, sin_TE)
        y: Tensor = self.norm(x_BTD)
        return y


class Llama(nn.Module):
    """A causal model whose parameters carry Hugging Face's names."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        if not shape.tied:
            self.lm_head = nn.Linear(shape.d_model, shape.vocabulary_size, bias=False)

    @property
    def max_positions(self) -> int:
        return self.shape.max_positions

    @property
    def vocabulary_size(self) -> int:
        return self.shape.vocabulary_size

    def head(self) -> Tensor:
        """Output matrix [V, D]; the embedding itself when tied."""
        return self.model.embed_tokens.weight if self.shape.tied else self.lm_head.weight

    def forward(self, ids_BT: Tensor, lengths_B: Tensor, chosen_BT: Tensor) -> Tensor:
        """Logits [N, V] at the positions chosen by a boolean mask, in row-major order.

        Rows are padded on the right; causal attention keeps padding out of every
        position before it, so `lengths_B` is not needed here.
        """
        hidden_ND = self.model(ids_BT)[chosen_BT]
        return functional.linear(hidden_ND, self.head())
