"""Where this process stands among those that share one model. Size 1 until a parallel executor exists."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ParallelContext"]


@dataclass(frozen=True, slots=True)
class ParallelContext:
    """Tensor-parallel rank and size. A layer splits along its `LayerSpec.axis` when size > 1.

    A communicator joins this class together with the first parallel executor; layers already receive the context, and
    keep their rank's part (`tokenloom.models.rank_part`).
    """

    rank: int = 0
    size: int = 1
