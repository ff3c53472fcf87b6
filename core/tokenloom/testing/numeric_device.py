"""Where a suite's arithmetic runs: which device, which dtypes, and how near a result must come to an fp32 reference."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from tokenloom.capability_check import missing_imports
from tokenloom.interfaces.contract import Capabilities

__all__ = ["DTYPES", "TOLERANCES", "check_close", "default_dtype", "numeric_device", "require_dtype"]

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""The activation dtypes that models run in, the most exact first."""

TOLERANCES: Mapping[torch.dtype, float] = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Absolute and relative, against an fp32 reference on the same rounded inputs, for outputs of size one."""


def numeric_device(capabilities: Capabilities, wanted: str | None = None) -> torch.device:
    """The device that a plugin is tested on: `wanted`, else the CPU if it is declared, else CUDA if there is one.

    Skips the running test, with the reason, where the plugin cannot run on this machine.
    """
    missing = missing_imports(capabilities)
    if missing:
        pytest.skip(f"the plugin needs {', '.join(missing)}, which is not installed")
    if wanted is not None:
        return torch.device(wanted)
    declared = capabilities.devices
    if declared is None or "cpu" in declared:
        return torch.device("cpu")
    if "cuda" in declared and torch.cuda.is_available():
        return torch.device("cuda")
    pytest.skip(f"the plugin runs on {', '.join(declared)} only, and this machine offers the cpu")


def default_dtype(capabilities: Capabilities) -> torch.dtype:
    """The most exact dtype that the plugin declares; any if it declares none."""
    declared = capabilities.dtypes
    for name, dtype in DTYPES.items():
        if declared is None or name in declared:
            return dtype
    pytest.skip(f"the plugin declares none of the dtypes {', '.join(DTYPES)}, but {declared}")


def require_dtype(capabilities: Capabilities, name: str) -> torch.dtype:
    """The dtype called `name`; skips the running test where the plugin does not declare it."""
    if capabilities.dtypes is not None and name not in capabilities.dtypes:
        pytest.skip(f"the plugin does not declare dtype {name}")
    return DTYPES[name]


def check_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float, case: str) -> None:
    """Asserts |actual - expected| <= tolerance * max(1, |expected|) everywhere; NaN is never near anything.

    Args:
        actual, expected: of one shape; compared in fp64.
        tolerance: see `TOLERANCES`.
        case: what was tried; stands in front of the message.
    """
    assert actual.shape == expected.shape, f"{case}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    got, wanted = actual.detach().double().cpu(), expected.detach().double().cpu()
    excess = (got - wanted).abs() - tolerance * wanted.abs().clamp(min=1.0)
    is_wrong = ~(excess <= 0)
    if bool(is_wrong.any()):
        worst = int(torch.where(excess.isnan(), torch.inf, excess).argmax())
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), got.shape)) if got.ndim else ()
        raise AssertionError(
            f"{case}: {int(is_wrong.sum())} of {got.numel()} values are wrong; the worst, at {index}, is "
            f"{float(got[index]):.7g} and must be {float(wanted[index]):.7g} (tolerance {tolerance:g})"
        )
