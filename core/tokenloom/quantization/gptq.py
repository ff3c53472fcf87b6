"""GPTQ: columns are rounded one after the other, and what each rounding does to the output is made up for in the rest.

Source: Frantar et al., GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers (2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from tokenloom.errors import ModelError
from tokenloom.quantization.method import LinearToRound, RoundedLinear, RoundingMethod
from tokenloom.quantization.rounded_weight import RoundedWeight, RoundingScheme, fit_grid, group_ranges, round_to_grid

__all__ = ["GPTQ"]

_BLOCK = 128
"""Columns that are rounded before the others hear of it: one large product in place of many small ones."""
_LARGEST_DAMPING = 1e3


@final
@dataclass(frozen=True, slots=True)
class GPTQ(RoundingMethod):
    """GPTQ with its order of columns and groups.

    Attributes:
        damping: share of the mean diagonal that is added to the Gram matrix; doubled until it has a Cholesky factor.
        act_order: round columns with the largest inputs first.
        static_groups: with `act_order`, lay all grids beforehand, over columns as they stand in the weight. Without it
            groups are formed in the order of rounding, and the format must store the group of each column.
    """

    damping: float = 0.01
    act_order: bool = True
    static_groups: bool = True

    @property
    def title(self) -> str:
        order = f"{'static' if self.static_groups else 'ordered'} groups" if self.act_order else "columns in order"
        return f"GPTQ ({'act-order, ' if self.act_order else ''}{order}, damping {self.damping:g})"

    def round(self, layer: LinearToRound) -> RoundedLinear:
        return self.round_for(layer.weight.clone(), layer.inputs.gram(), layer.scheme, layer.name)

    def round_for(self, weight: torch.Tensor, gram: torch.Tensor, scheme: RoundingScheme, name: str) -> RoundedLinear:
        """Rounds a weight for inputs of which only the products are known.

        Args:
            weight: fp32 [N, K]; changed.
            gram: mean of x x^T, fp32 [K, K]; changed.
            scheme: what it is to be rounded to.
            name: of the layer, for errors.

        Raises:
            ModelError: `gram` is not finite, or has no Cholesky factor.
        """
        if not bool(gram.isfinite().all()):
            raise ModelError(
                f"{name}: its inputs are not finite on the calibration text; try dtype=float32, or another text"
            )
        diagonal = gram.diagonal()
        dead = diagonal == 0  # never used: any weight gives the same output
        diagonal[dead] = 1.0
        weight[:, dead] = 0.0
        order = diagonal.argsort(descending=True) if self.act_order else torch.arange(weight.shape[1])
        factor, damping = self._inverse_factor(gram[order][:, order], name)
        grids = _StaticGrids.of(weight, scheme) if self.act_order and self.static_groups else None
        rounded = _Sweep(weight[:, order], factor, scheme, order, grids).rounded()
        note = "" if damping == self.damping else f"damping raised to {damping:g}"
        return RoundedLinear(rounded, note=note)

    def _inverse_factor(self, gram: torch.Tensor, name: str) -> tuple[torch.Tensor, float]:
        """(upper Cholesky factor U of the inverse, U^T U = (gram + damping)^-1; the damping that it took)."""
        mean, damping = float(gram.diagonal().mean()), self.damping
        while damping <= _LARGEST_DAMPING:
            damped = gram + torch.diag(gram.new_full((gram.shape[0],), damping * mean))
            lower, failed = torch.linalg.cholesky_ex(damped)
            if not int(failed):
                upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
                if not int(failed) and bool(upper.isfinite().all()):
                    return upper, damping
            damping = max(2 * damping, 1e-4)
        raise ModelError(
            f"{name}: the products of its inputs have no Cholesky factor, even with a damping of {_LARGEST_DAMPING:g}; "
            "calibrate with more or other text"
        )


@dataclass(frozen=True, slots=True)
class _StaticGrids:
    """Grids of groups of the weight as it was, [N, G] each."""

    scale: torch.Tensor
    zero: torch.Tensor

    @classmethod
    def of(cls, weight: torch.Tensor, scheme: RoundingScheme) -> _StaticGrids:
        return cls(*fit_grid(*group_ranges(weight, scheme), scheme))


@final
class _Sweep:
    """One pass over the columns of a weight.

    Args:
        weight: fp32 [N, K], columns in the order of rounding; changed.
        factor: fp32 [K, K], U of the paper, in the same order.
        scheme: the grids' form.
        order: int64 [K], the input feature of each column.
        static: grids that were laid before; None lays each as its first column comes up, from what the weight then is.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        factor: torch.Tensor,
        scheme: RoundingScheme,
        order: torch.Tensor,
        static: _StaticGrids | None,
    ) -> None:
        self._weight, self._factor, self._scheme, self._order = weight, factor, scheme, order
        num_rows, self._num_columns = weight.shape
        self._width = scheme.width(self._num_columns)
        position = torch.arange(self._num_columns)
        self._group_of = (order if static is not None else position) // self._width  # of each column
        self._lays_grids = static is None
        shape = (num_rows, -(-self._num_columns // self._width))
        self._scale = torch.empty(shape) if static is None else static.scale
        self._zero = torch.empty(shape) if static is None else static.zero
        self._codes = torch.empty_like(weight)

    def rounded(self) -> RoundedWeight:
        """Rounds all columns; returns them in the order of input features."""
        block = self._block_size()
        for start in range(0, self._num_columns, block):
            stop = min(start + block, self._num_columns)
            errors = self._round_block(start, stop)  # [N, stop - start]
            self._weight[:, stop:].addmm_(errors, self._factor[start:stop, stop:], alpha=-1.0)
        inverse = self._order.argsort()
        return RoundedWeight(
            self._codes[:, inverse].to(torch.uint8),
            self._scale.to(self._scheme.scale_dtype),
            self._zero.to(torch.uint8),
            self._group_of[inverse],
            self._scheme,
        )

    def _block_size(self) -> int:
        """Whole groups, so that a grid is laid from weights that know of all roundings before them."""
        if not self._lays_grids or self._width == self._num_columns:
            return _BLOCK
        return self._width * max(1, _BLOCK // self._width)

    def _round_block(self, start: int, stop: int) -> torch.Tensor:
        """Rounds columns; returns their errors, each over its diagonal element of U."""
        block = self._weight[:, start:stop]  # a view: what is made up for within the block is written there
        errors = torch.empty_like(block)
        diagonal = self._factor.diagonal()[start:stop].tolist()
        groups = self._group_of[start:stop].tolist()
        for offset in range(stop - start):
            column, group = start + offset, groups[offset]
            if self._lays_grids and column % self._width == 0:
                whole = self._weight[:, column : column + self._width]
                self._scale[:, group], self._zero[:, group] = fit_grid(*whole.aminmax(dim=1), self._scheme)
            scale, zero = self._scale[:, group], self._zero[:, group]
            codes = round_to_grid(block[:, offset], scale, zero, self._scheme.most)
            self._codes[:, column] = codes
            errors[:, offset] = (block[:, offset] - (codes - zero) * scale) / diagonal[offset]
            rest = self._factor[column, column + 1 : stop]
            block[:, offset + 1 :].addr_(errors[:, offset], rest, alpha=-1.0)
        return errors
