"""Decoding rows: sequences that grow together, one token a step, under one set of weights.

`LlamaRows` keeps a ragged key-value cache (every row has a length of its own) and
takes new rows between any two steps. `ForwardRows` does the same for any causal
model by running whole sequences again: slow, but right for every architecture.

Invariant: the logits of a row depend on its own tokens only, never on its neighbours.
Shapes: N rows, V vocabulary, D width, H heads, K key-value heads, R = H / K, E head
width, C cache capacity in positions, M new rows, T their padded length.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

from trialyard.policies.hf_llama import Layer, Llama, rope_angles

CACHE_BLOCK = 32
"""Cache capacity grows in blocks of this many positions."""

PART_TOKENS = 1024
"""Prompts are read in parts of about this many tokens: more spill out of the cache."""


class Rows(Protocol):
    """Sequences decoded together. Rows are numbered 0..N-1; `drop` renumbers them."""

    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Append rows and return the logits [M, V] of each one's next token."""

    def step(self, tokens_N: Tensor) -> Tensor:
        """Append one token to every row and return the next logits [N, V]."""

    def drop(self, rows: Sequence[int]) -> None:
        """Forget these rows; the others move as `survivors` says."""


def survivors(count: int, dropped: Sequence[int]) -> list[int]:
    """Old numbers of the rows left, in their new order: the last ones fill the holes."""
    gone = set(dropped)
    order = list(range(count - len(gone)))
    tail = [row for row in range(len(order), count) if row not in gone]
    for hole, row in zip(sorted(gone), tail, strict=False):
        order[hole] = row
    return order


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """One layer's matrices, joined where they share an input, with the norms folded in."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor


class FusedLlama:
    """A frozen copy of a `Llama`, rewritten for few, large operations per token.

    The weight of each norm is folded into the matrix behind it, the attention scale
    into the query matrix, and query and key rows are reordered so that rotary pairs
    are neighbours: one complex product rotates them. Scores do not change under an
    order shared by queries and keys.
    """

    def __init__(self, model: Llama) -> None:
        shape = self.shape = model.shape
        pairs = torch.arange(shape.head_dim).view(2, -1).t().reshape(-1)
        with torch.no_grad():
            angles = rope_angles(shape, device=model.head().device)
            self.rotation = torch.polar(torch.ones_like(angles), angles)
            self.embedding = model.model.embed_tokens.weight.detach().clone()
            self.head = model.head() * model.model.norm.weight
            self.layers = [self._fuse(cast(Layer, layer), pairs) for layer in model.model.layers]

    def _fuse(self, layer: Layer, pairs: Tensor) -> FusedLayer:
        shape, attention, mlp = self.shape, layer.self_attn, layer.mlp

        def paired(weight: Tensor) -> Tensor:
            return weight.view(-1, shape.head_dim, shape.d_model)[:, pairs].flatten(0, 1)

        query = paired(attention.q_proj.weight) * shape.head_dim**-0.5
        qkv = torch.cat((query, paired(attention.k_proj.weight), attention.v_proj.weight))
        gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
        return FusedLayer(
            qkv=qkv * layer.input_layernorm.weight,
            out=attention.o_proj.weight.detach().clone(),
            gate_up=gate_up * layer.post_attention_layernorm.weight,
            down=mlp.down_proj.weight.detach().clone(),
        )

    def norm(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (self.shape.d_model,), eps=self.shape.rms_eps)

    def feed_forward(self, layer: FusedLayer, x: Tensor) -> Tensor:
        gate, up = functional.linear(self.norm(x), layer.gate_up).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate).mul_(up), layer.down)

    def heads(self, layer: FusedLayer, x: Tensor, rotation: Tensor) -> tuple[Tensor, ...]:
        """Rotated queries [..., H, E], rotated keys and values [..., K, E]."""
        shape, batch = self.shape, x.shape[:-1]
        joint = functional.linear(self.norm(x), layer.qkv).view(*batch, -1, shape.head_dim)
        turned = shape.heads + shape.kv_heads
        pairs = torch.view_as_complex(joint[..., :turned, :].view(*batch, turned, -1, 2))
        both = torch.view_as_real(pairs * rotation).flatten(-2)
        return both[..., : shape.heads, :], both[..., shape.heads :, :], joint[..., turned:, :]

    def logits(self, x: Tensor) -> Tensor:
        return functional.linear(self.norm(x), self.head)


def similar_lengths(prompts: Iterable[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Prompts in parts that waste little padding and fit the processor's cache."""
    parts: list[list[tuple[int, ...]]] = []
    longest = 0
    for prompt in sorted(prompts, key=len):
        if len(prompt) > longest or len(parts[-1]) * longest >= PART_TOKENS:
            parts.append([])
            longest = len(prompt) * 5 // 4 + 8
        parts[-1].append(prompt)
    return parts


def padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids [M, T] padded on the right with 0, and lengths [M]."""
    longest = max(len(prompt) for prompt in prompts)
    rows = [[*prompt, *([0] * (longest - len(prompt)))] for prompt in prompts]
    lengths = [len(prompt) for prompt in prompts]
    return torch.tensor(rows, device=device), torch.tensor(lengths, device=device)


class LlamaRows:
    """Ragged key-value cache over a `FusedLlama`.

    Keys and values lie as [layers, N, K, C, E], one after the other in memory as written.
    Row n holds positions 0..lengths[n]-1; what lies behind is masked.
    """

    def __init__(self, model: FusedLlama) -> None:
        self._model = model
        self._clear()

    def _clear(self) -> None:
        shape, device = self._model.shape, self._model.embedding.device
        sizes = (shape.layers, 0, shape.kv_heads, 0, shape.head_dim)
        self._keys = torch.zeros(sizes, device=device)
        self._values = torch.zeros(sizes, device=device)
        self._lengths_N = torch.zeros(0, dtype=torch.long, device=device)

    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Equal prompts (the members of a group) are run once."""
        old, device = len(self._lengths_N), self._lengths_N.device
        lengths_M = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._lengths_N = torch.cat((self._lengths_N, lengths_M))
        self._reserve(len(self._lengths_N), int(lengths_M.max()) + 1)
        logits_MV = torch.empty(len(prompts), len(self._model.head), device=device)
        places: dict[tuple[int, ...], list[int]] = {}
        for place, prompt in enumerate(prompts):
            places.setdefault(tuple(prompt), []).append(place)
        for part in similar_lengths(places):
            to = [place for prompt in part for place in places[prompt]]
            source = [index for index, prompt in enumerate(part) for _ in places[prompt]]
            logits_MV[to] = self._read(part, source, [old + place for place in to])
        return logits_MV

    def _read(
        self, prompts: Sequence[Sequence[int]], source: Sequence[int], rows: Sequence[int]
    ) -> Tensor:
        """Run different prompts; row ``rows[i]`` becomes prompt ``source[i]``. Their logits."""
        ids_MT, lengths_M = padded(prompts, self._lengths_N.device)
        logits, keys, values = self._prefill(ids_MT, lengths_M)
        length = ids_MT.shape[1]
        self._keys[:, rows, :, :length] = keys[:, source]
        self._values[:, rows, :, :length] = values[:, source]
        return logits[source]

    def _prefill(self, ids_MT: Tensor, lengths_M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        model, shape = self._model, self._model.shape
        x = functional.embedding(ids_MT, model.embedding)
        rotation = model.rotation[: ids_MT.shape[1], None]
        grouped = shape.kv_heads != shape.heads
        keys, values = [], []
        for layer in model.layers:
            q, k, v = (part.transpose(1, 2) for part in model.heads(layer, x, rotation))
            keys.append(k)
            values.append(v)
            y = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=1.0, enable_gqa=grouped
            )
            x = x + functional.linear(y.transpose(1, 2).flatten(-2), layer.out)
            x = x + model.feed_forward(layer, x)
        last = x[torch.arange(len(x), device=x.device), lengths_M - 1]
        return model.logits(last), torch.stack(keys), torch.stack(values)

    def _reserve(self, rows: int, positions: int) -> None:
        """Grow the cache to hold at least this many rows and positions."""
        layers, old_rows, kv_heads, old_positions, width = self._keys.shape
        if rows <= old_rows and positions <= old_positions:
            return
        if rows > old_rows:
            rows = max(rows, 2 * old_rows)
        rows = max(rows, old_rows)
        positions = max(-(-positions // CACHE_BLOCK) * CACHE_BLOCK, old_positions)
        keys = self._keys.new_zeros(layers, rows, kv_heads, positions, width)
        values = torch.zeros_like(keys)
        keys[:, :old_rows, :, :old_positions] = self._keys
        values[:, :old_rows, :, :old_positions] = self._values
        self._keys, self._values = keys, values

    def step(self, tokens_N: Tensor) -> Tensor:
        model, shape = self._model, self._model.shape
        count, positions = len(self._lengths_N), self._lengths_N
        self._lengths_N = positions + 1
        longest = int(self._lengths_N.max())
        self._reserve(count, longest)
        x = functional.embedding(tokens_N, model.embedding)
        rotation = model.rotation[positions][:, None]
        beyond = torch.arange(longest, device=x.device) > positions[:, None]
        mask = torch.zeros(beyond.shape, device=x.device).masked_fill_(beyond, float("-inf"))
        mask_N11C = mask[:, None, None]
        cells = self._cells(positions)
        for index, layer in enumerate(model.layers):
            q, k, v = model.heads(layer, x, rotation)
            keys, values = self._keys[index], self._values[index]
            keys.view(-1, shape.head_dim).index_copy_(0, cells, k.flatten(0, 1))
            values.view(-1, shape.head_dim).index_copy_(0, cells, v.flatten(0, 1))
            q_NKRE = q.reshape(count, shape.kv_heads, -1, shape.head_dim)
            weights = (
                torch.matmul(q_NKRE, keys[:count, :, :longest].transpose(-1, -2))
                .add_(mask_N11C)
                .softmax(dim=-1)
            )
            y = torch.matmul(weights, values[:count, :, :longest]).reshape(count, -1)
            x = x + functional.linear(y, layer.out)
            x = x + model.feed_forward(layer, x)
        return model.logits(x)

    def _cells(self, positions_N: Tensor) -> Tensor:
        """Where one token of every row is written: rows [N * K] of a layer's cache seen as
        rows of E (indexing its four axes is several times slower)."""
        _, _, kv_heads, capacity, _ = self._keys.shape
        heads = torch.arange(len(positions_N) * kv_heads, device=positions_N.device)
        return (heads.view(-1, kv_heads) * capacity + positions_N[:, None]).flatten()

    def drop(self, rows: Sequence[int]) -> None:
        order = survivors(len(self._lengths_N), rows)
        if not order:
            self._clear()
            return
        moved = [(place, row) for place, row in enumerate(order) if place != row]
        if moved:
            places, sources = (list(column) for column in zip(*moved, strict=True))
            longest = int(self._lengths_N[sources].max())
            self._keys[:, places, :, :longest] = self._keys[:, sources, :, :longest]
            self._values[:, places, :, :longest] = self._values[:, sources, :, :longest]
            self._lengths_N[places] = self._lengths_N[sources]
        self._lengths_N = self._lengths_N[: len(order)].clone()


class CausalModel(Protocol):
    """What `ForwardRows` and the learner need: logits at chosen positions (see `Llama`)."""

    @property
    def max_positions(self) -> int:
        """Length of the context window in tokens."""

    def __call__(self, ids_BT: Tensor, lengths_B: Tensor, chosen_BT: Tensor) -> Tensor:
        """Logits [N, V] of right-padded rows at the chosen positions."""


class ForwardRows:
    """Rows of any causal model, without a cache: each step runs the whole sequences."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._rows: list[list[int]] = []

    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        self._rows += [list(prompt) for prompt in prompts]
        return self._logits(self._rows[-len(prompts) :])

    def step(self, tokens_N: Tensor) -> Tensor:
        for row, token in zip(self._rows, tokens_N.tolist(), strict=True):
            row.append(token)
        return self._logits(self._rows)

    def drop(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in survivors(len(self._rows), rows)]

    def _logits(self, rows: list[list[int]]) -> Tensor:
        ids_BT, lengths_B = padded(rows, torch.device("cpu"))
        chosen_BT = torch.arange(ids_BT.shape[1]) == lengths_B[:, None] - 1
        return self._model(ids_BT, lengths_B, chosen_BT)
