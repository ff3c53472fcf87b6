"""Sizes of files as people write them."""

from __future__ import annotations

__all__ = ["size_text"]

_UNITS = ("B", "kB", "MB", "GB", "TB")


def size_text(num_bytes: int) -> str:
    """In powers of 1000, as disks and downloads count: "98.4 MB"."""
    size, unit = float(num_bytes), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
