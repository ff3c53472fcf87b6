"""The codebooks of the IQ types against those of the `gguf` package."""

from __future__ import annotations

import pytest
import torch
from gguf import quants

from tokenloom.loader.gguf_codebooks import codebook


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("IQ1", quants.IQ1_S),
        ("IQ1", quants.IQ1_M),
        ("IQ2_XXS", quants.IQ2_XXS),
        ("IQ2_XS", quants.IQ2_XS),
        ("IQ2_S", quants.IQ2_S),
        ("IQ3_XXS", quants.IQ3_XXS),
        ("IQ3_S", quants.IQ3_S),
    ],
)
def test_codebook_equals_the_reference(name: str, reference: type) -> None:
    reference.init_grid()  # type: ignore[attr-defined]
    points = codebook(name)
    assert points.dtype == torch.float32
    assert torch.equal(points, torch.from_numpy(reference.grid.reshape(reference.grid_shape)))  # type: ignore[attr-defined]


def test_codebook_of_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        codebook("IQ9")
