"""KV as a forward pass makes it, for testing what only looks at numbers.

A small Llama with random weights in numpy: RMSNorm, rotary embeddings, grouped queries, causal
attention, SwiGLU. `rounding` is applied after every step, so that a pass "in bfloat16", or with
sums added up in another order, differs from the exact one the way other hardware does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Rounding = Callable[[Floats], Floats]

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD = 6, 256, 8, 4, 32
VOCABULARY = 512


def exact(values: Floats) -> Floats:
    return values


def bfloat16_bits(values: Floats) -> npt.NDArray[np.uint16]:
    """Round to nearest even, as hardware does."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bfloat16(values: Floats) -> Floats:
    return (bfloat16_bits(values).astype(np.uint32) << 16).view(np.float32).reshape(values.shape)


def bfloat16_other_order(values: Floats) -> Floats:
    """bfloat16 on hardware that adds up in another order: an ulp of float32 noise comes first."""
    noise = np.random.default_rng(values.size).normal(0, 2e-4, values.shape)
    return bfloat16((values * (1 + noise)).astype(np.float32))


@dataclass(frozen=True)
class Weights:
    embedding: Floats
    layers: tuple[tuple[Floats, ...], ...]

    def perturbed(self, scale: float, seed: int) -> Weights:
        """The same base after a fine-tune: each matrix moved by `scale` of its own size."""
        random = np.random.default_rng(seed)

        def moved(matrix: Floats) -> Floats:
            noise = random.normal(0, scale * matrix.std(), matrix.shape)
            return (matrix + noise).astype(np.float32)

        layers = tuple(tuple(moved(matrix) for matrix in layer) for layer in self.layers)
        return Weights(self.embedding, layers)


def weights(seed: int) -> Weights:
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Floats:
        return random.normal(0, rows**-0.5, (rows, columns)).astype(np.float32)

    shapes = (
        (HIDDEN, HEADS * HEAD),
        (HIDDEN, KV_HEADS * HEAD),
        (HIDDEN, KV_HEADS * HEAD),
        (HEADS * HEAD, HIDDEN),
        (HIDDEN, 2 * HIDDEN),
        (HIDDEN, 2 * HIDDEN),
        (2 * HIDDEN, HIDDEN),
    )
    layers = tuple(tuple(matrix(*shape) for shape in shapes) for _ in range(LAYERS))
    return Weights(matrix(VOCABULARY, HIDDEN) * HIDDEN**0.5, layers)


def forward(model: Weights, tokens: int, rounding: Rounding = exact, seed: int = 1) -> Floats:
    """The KV of a random prompt, shape (2, LAYERS, tokens, KV_HEADS * HEAD)."""
    prompt = np.random.default_rng(seed).integers(0, VOCABULARY, tokens)
    x = rounding(model.embedding[prompt])
    causal = np.triu(np.full((tokens, tokens), -1e9, np.float32), 1)
    kept = np.zeros((2, LAYERS, tokens, KV_HEADS * HEAD), np.float32)
    for index, (wq, wk, wv, wo, gate, up, down) in enumerate(model.layers):
        h = rounding(_norm(x))
        q = rounding(_rotate(rounding(h @ wq).reshape(tokens, HEADS, HEAD)))
        k: Floats = rounding(_rotate(rounding(h @ wk).reshape(tokens, KV_HEADS, HEAD)))
        v: Floats = rounding(h @ wv).reshape(tokens, KV_HEADS, HEAD)
        kept[0, index], kept[1, index] = k.reshape(tokens, -1), v.reshape(tokens, -1)
        wide = HEADS // KV_HEADS
        k, v = np.repeat(k, wide, axis=1), np.repeat(v, wide, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD) + causal
        probabilities = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities /= probabilities.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", rounding(probabilities), v).reshape(tokens, -1)
        x = rounding(x + rounding(rounding(mixed) @ wo))
        h = rounding(_norm(x))
        gated = rounding(h @ gate)
        x = rounding(x + rounding((gated / (1 + np.exp(-gated)) * (h @ up)) @ down))
    return kept


def _norm(x: Floats) -> Floats:
    scale = np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    normed: Floats = (x / scale).astype(np.float32)
    return normed


def _rotate(x: Floats) -> Floats:
    tokens, _, width = x.shape
    frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(tokens)[:, None] * frequencies[None, :]
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = np.empty_like(x)
    turned[..., 0::2] = even * cos - odd * sin
    turned[..., 1::2] = even * sin + odd * cos
    return turned
