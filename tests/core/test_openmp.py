"""The spin is set for whoever asks for an engine, before torch loads OpenMP, and a user's own choice stays."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"))
            sys.exit()
sys.meta_path.insert(0, Watch())
from tokenloom import LLM
"""


@pytest.mark.parametrize(("own", "expected"), [(None, "10000"), ("77", "77")])
def test_spin_is_set_before_torch_is_imported(own: str | None, expected: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}
    if own is not None:
        environment["GOMP_SPINCOUNT"] = own
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected]
