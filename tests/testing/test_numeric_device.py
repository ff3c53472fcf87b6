"""What the numeric suites rest on: where they run, and a comparison that nothing slips through."""

from __future__ import annotations

import pytest
import torch

from tokenloom.interfaces.contract import Capabilities
from tokenloom.testing.numeric_device import check_close, default_dtype, numeric_device, require_dtype


def test_check_close_measures_small_values_absolutely_and_large_ones_relatively() -> None:
    check_close(torch.tensor([1.0009, 1000.9]), torch.tensor([1.0, 1000.0]), 1e-3, "near")
    with pytest.raises(
        AssertionError, match=r"far: 1 of 2 values are wrong; the worst, at \(1,\), is 1002 and must be"
    ):
        check_close(torch.tensor([1.0, 1002.0]), torch.tensor([1.0, 1000.0]), 1e-3, "far")
    with pytest.raises(AssertionError, match=r"at \(0,\)"):
        check_close(torch.tensor([0.002]), torch.tensor([0.0]), 1e-3, "small")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_check_close_lets_no_nan_or_infinity_pass(value: float) -> None:
    wanted = torch.zeros(2, 3)
    got = wanted.clone()
    got[1, 2] = value
    with pytest.raises(AssertionError, match=r"1 of 6 values are wrong; the worst, at \(1, 2\)"):
        check_close(got, wanted, 1e9 if value != value else 1e-3, "poison")


def test_check_close_compares_shapes() -> None:
    with pytest.raises(AssertionError, match=r"shape \(1,\), expected \(2,\)"):
        check_close(torch.zeros(1), torch.zeros(2), 1.0, "broadcast")


def test_check_close_of_nothing_passes() -> None:
    check_close(torch.zeros(0, 4), torch.zeros(0, 4), 1e-5, "empty")


@pytest.mark.parametrize(
    ("declared", "expected"),
    [(None, torch.float32), (("bfloat16", "float16"), torch.float16), (("bfloat16",), torch.bfloat16)],
)
def test_default_dtype_is_the_most_exact_one(declared: tuple[str, ...] | None, expected: torch.dtype) -> None:
    assert default_dtype(Capabilities(dtypes=declared)) == expected


def test_dtypes_that_are_not_declared_are_skipped() -> None:
    assert require_dtype(Capabilities(dtypes=("bfloat16",)), "bfloat16") == torch.bfloat16
    with pytest.raises(pytest.skip.Exception, match="does not declare dtype float32"):
        require_dtype(Capabilities(dtypes=("bfloat16",)), "float32")
    with pytest.raises(pytest.skip.Exception, match="declares none of the dtypes"):
        default_dtype(Capabilities(dtypes=("int8",)))


@pytest.mark.parametrize("declared", [None, ("cpu",), ("cuda", "cpu")])
def test_the_cpu_is_taken_where_it_is_declared(declared: tuple[str, ...] | None) -> None:
    assert numeric_device(Capabilities(devices=declared)) == torch.device("cpu")
    assert numeric_device(Capabilities(devices=declared), "cuda") == torch.device("cuda")


@pytest.mark.parametrize("has_cuda", [True, False])
def test_cuda_is_taken_where_it_is_all_there_is(monkeypatch: pytest.MonkeyPatch, has_cuda: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    if has_cuda:
        assert numeric_device(Capabilities(devices=("cuda",))) == torch.device("cuda")
    else:
        with pytest.raises(pytest.skip.Exception, match="runs on cuda only"):
            numeric_device(Capabilities(devices=("cuda",)))
