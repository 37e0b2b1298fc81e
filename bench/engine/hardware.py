"""Hardware: what a prefill costs, from published peaks and one stated efficiency.

Seconds are modelled, never measured here: `10 ms + FLOP / (GPUs * peak * 0.5)`, with the FLOP of
`sharedfs_backend.economics` (two for each weight a token passes, and attention's pairs). Half of
the dense 16-bit peak is what prefills of long prompts reach; real engines say how well it fits.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.engine.models import Model
from sharedfs_backend.economics import Prefill, parameters_passed, prefill_of_hardware
from sharedfs_backend.economics.models import attention

EFFICIENCY = 0.5
FIXED_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU. `flops`: dense 16-bit tensor peak of the vendor's data sheet."""

    name: str
    flops: float


GPUS: dict[str, Hardware] = {
    gpu.name: gpu
    for gpu in (
        Hardware("A40", 149.7e12),
        Hardware("RTX A6000", 154.8e12),
        Hardware("A100", 312e12),
        Hardware("H100", 989e12),
    )
}


def prefill_on(gpu: Hardware, model: Model, efficiency: float = EFFICIENCY) -> Prefill:
    """The model on `tensor_parallel` of these."""
    part = attention(model.config)
    return prefill_of_hardware(
        parameters_passed(model.config),
        part.layers,
        part.heads,
        part.head_dim,
        flops=gpu.flops * model.tensor_parallel,
        efficiency=efficiency,
        fixed_seconds=FIXED_SECONDS,
    )
