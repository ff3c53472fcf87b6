"""A name for a model's weights that travels: equal wherever the files lie, and whatever the time of their making.

Trained drafter heads state whose they are by it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ["target_fingerprint"]

_NUM_SAMPLES = 64
_SAMPLE_BYTES = 4096
_WEIGHT_ENDINGS = (".safetensors", ".bin", ".gguf")


def target_fingerprint(path: Path) -> str:
    """SHA-256 over sizes and evenly spread samples of a model's weight files, 16 hexadecimal digits.

    Args:
        path: a .gguf file, or a folder.
    """
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.suffix in _WEIGHT_ENDINGS)
    digest = hashlib.sha256()
    for file in files:
        num_bytes = file.stat().st_size
        digest.update(b"%d:" % num_bytes)
        with file.open("rb", buffering=0) as stream:
            for index in range(_NUM_SAMPLES):
                stream.seek(max(0, num_bytes - _SAMPLE_BYTES) * index // (_NUM_SAMPLES - 1), os.SEEK_SET)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]
