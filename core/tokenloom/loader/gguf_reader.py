"""A bounds-checked cursor over the header of a GGUF file: numbers, strings and metadata values."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NoReturn, final

from tokenloom.errors import ModelError

__all__ = ["GGUFReader"]

_STRING, _ARRAY, _BOOL = 8, 9, 7
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Fixed-size value types by number, as struct formats."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_MAX_NAME_BYTES = 1 << 16
_MAX_STRING_BYTES = 1 << 24
_MAX_ARRAY_ITEMS = 1 << 22
_MAX_ARRAY_DEPTH = 4


@final
class GGUFReader:
    """Reads forward from the start. `where` says what is being read; every ModelError carries it and the file."""

    def __init__(self, buffer: mmap.mmap, path: Path) -> None:
        self.path = path
        self.size = len(buffer)
        self.position = 0
        self.where = ""
        self._buffer = buffer

    def skip(self, num_bytes: int) -> int:
        """Moves forward; returns the position before."""
        start, end = self.position, self.position + num_bytes
        if end > self.size:
            raise ModelError(
                f"{self.path} is truncated or damaged: {self.where} needs bytes {start} to {end}, "
                f"but the file has {self.size}; fetch it again"
            )
        self.position = end
        return start

    def u32(self) -> int:
        number: int = _U32.unpack_from(self._buffer, self.skip(4))[0]
        return number

    def u64(self) -> int:
        number: int = _U64.unpack_from(self._buffer, self.skip(8))[0]
        return number

    def name(self) -> str:
        """A string that names something: never empty, never long."""
        name = self._string(_MAX_NAME_BYTES)
        if not name:
            self._damaged("is empty")
        return name

    def value(self, type_id: int, depth: int = 0) -> Any:
        """A metadata value of the given type."""
        if type_id == _STRING:
            return self._string(_MAX_STRING_BYTES)
        if type_id == _ARRAY:
            return self._array(depth)
        return self._numbers(type_id, 1)[0]

    def check_count(self, count: int, min_item_bytes: int, what: str) -> None:
        """Refuses a count that the rest of the file cannot hold, before anything is allocated for it."""
        left = self.size - self.position
        if count * min_item_bytes > left:
            self._damaged(f"announces {count} {what}, more than the {left} bytes left in the file can hold")

    def _array(self, depth: int) -> list[Any]:
        if depth >= _MAX_ARRAY_DEPTH:
            self._damaged(f"nests arrays deeper than {_MAX_ARRAY_DEPTH}")
        item_type, count = self.u32(), self.u64()
        if count > _MAX_ARRAY_ITEMS:
            self._damaged(f"announces an array of {count} items; at most {_MAX_ARRAY_ITEMS} are read")
        if item_type == _STRING:
            return self._strings(count)
        if item_type == _ARRAY:
            self.check_count(count, 12, "arrays")
            return [self._array(depth + 1) for _ in range(count)]
        return list(self._numbers(item_type, count))

    def _numbers(self, type_id: int, count: int) -> tuple[Any, ...]:
        code = _FORMATS.get(type_id)
        if code is None:
            self._damaged(f"has the unknown value type {type_id}")
        layout = struct.Struct(f"<{count}{code}")
        return layout.unpack_from(self._buffer, self.skip(layout.size))

    def _string(self, max_bytes: int) -> str:
        num_bytes = self.u64()
        if num_bytes > max_bytes:
            self._damaged(f"announces a string of {num_bytes} bytes; at most {max_bytes} are read")
        start = self.skip(num_bytes)
        try:
            return self._buffer[start : self.position].decode("utf-8")
        except UnicodeDecodeError as error:
            self._damaged(f"is not valid UTF-8 ({error.reason} at byte {start + error.start})")

    def _strings(self, count: int) -> list[str]:
        # The hot loop of opening a model: locals only, one bounds check a string. A length that runs past the end is
        # caught before its bytes are sliced; one that hides the next length makes unpack_from fail.
        self.check_count(count, 8, "strings")
        buffer, size, position = self._buffer, self.size, self.position
        read_length = _U64.unpack_from
        strings: list[str] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + read_length(buffer, position)[0]
                if position > size:
                    self._damaged(f"has string {len(strings)} end at byte {position}, but the file has {size}")
                strings.append(buffer[start:position].decode("utf-8"))
        except struct.error:
            self._damaged(f"ends after string {len(strings)} of {count}: the file has only {size} bytes")
        except UnicodeDecodeError as error:
            self._damaged(f"has string {len(strings)} that is not valid UTF-8 ({error.reason})")
        self.position = position
        return strings

    def _damaged(self, what: str) -> NoReturn:
        raise ModelError(f"{self.path} is truncated or damaged: {self.where} {what}; fetch it again")
