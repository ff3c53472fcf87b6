"""The formats that can be written, by the words that users write."""

from __future__ import annotations

from collections.abc import Mapping

from tokenloom.quantization.awq_writer import AWQWriter
from tokenloom.quantization.compressed_tensors_writer import CompressedTensorsWriter
from tokenloom.quantization.gptq_writer import GPTQWriter
from tokenloom.quantization.writer import CheckpointWriter

__all__ = ["WRITERS"]

WRITERS: Mapping[str, CheckpointWriter] = {
    writer.name: writer for writer in (CompressedTensorsWriter(), AWQWriter(), GPTQWriter())
}
"""Formats that can be written."""
