"""Fields: what a refusal says of the value that it found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), ("0", "'0'"), (True, "True"), (1.5, "1.5"), ([1, 2], "[1, 2]"), ("x" * 200, "'" + "x" * 79)],
)
def test_a_refused_value_is_shown_as_what_it_is(value: Any, shown: str) -> None:
    with pytest.raises(ModelError) as caught:
        Fields({"num_layers": value}, Path("config.json")).integer("num_layers")
    assert str(caught.value) == f"config.json: 'num_layers' must be an integer from 1 to 2147483647, got {shown}"
