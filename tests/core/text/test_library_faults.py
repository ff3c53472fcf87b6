"""The border to the tokenizers library: its faults become ours, everything else passes."""

from __future__ import annotations

import pytest
from tokenizers.models import BPE

from tokenloom.errors import ModelError, RequestError
from tokenloom.text.library_faults import library_faults_as


def test_a_breakdown_of_the_library_is_turned() -> None:
    with pytest.raises(ModelError, match=r"^broken: range end index 4"), library_faults_as(ModelError, "broken"):
        BPE({"a": 0, "b": 1, "ab": 2}, [("ab", "ab")])


def test_a_refusal_of_the_library_is_turned() -> None:
    with pytest.raises(RequestError, match=r"^refused: .*`c`"), library_faults_as(RequestError, "refused"):
        BPE({"a": 0, "b": 1, "ab": 2}, [("a", "c")])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, AssertionError, KeyError])
def test_what_is_not_the_librarys_passes(error: type[BaseException]) -> None:
    with pytest.raises(error) as caught, library_faults_as(ModelError, "broken"):
        raise error("x")
    assert type(caught.value) is error


def test_our_own_errors_pass() -> None:
    with pytest.raises(ModelError, match=r"^exact$"), library_faults_as(RequestError, "broken"):
        raise ModelError("exact")
