"""The base of everything that a configuration holds: plugins' settings, the core's, and commands' own."""

from __future__ import annotations

import os.path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict

__all__ = ["Settings", "UserPath"]

UserPath = Annotated[str, AfterValidator(os.path.expanduser)]
"""Text that names a file or folder of the user's, or may: `~` is the home folder, which no shell puts behind `key=`.

Words that stand for something else (`default`, `generated`, `hf:org/name`) stay as they are, and so does the `~name` of
a user whom nobody knows, as in a shell. A setting that is no path is a plain `str`: a prompt may well begin with `~`.
"""


class Settings(BaseModel):
    """Frozen, with unknown keys forbidden, no coercion (`true` never becomes 1), and finite numbers only.

    A result file states the settings, and JSON has no infinity; arithmetic with one gives NaN soon. A setting that can
    be off allows null.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
