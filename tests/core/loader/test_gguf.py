"""The GGUF parser: what it reads, and that damage of any kind is a ModelError."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tokenloom.errors import ModelError
from tokenloom.loader.gguf import GGUFFile

U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10


@pytest.fixture
def save(tmp_path: Path) -> Any:
    def write(content: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return path

    return write


def refusal(path: Path) -> str:
    """The message of the ModelError that opening gives; it always names the file."""
    with pytest.raises(ModelError) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_file_reads_what_the_reference_writer_wrote(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values: dict[str, tuple[Any, Any]] = {
        "a.uint8": (writer.add_uint8, 200),
        "a.int8": (writer.add_int8, -3),
        "a.uint16": (writer.add_uint16, 60000),
        "a.int16": (writer.add_int16, -300),
        "a.uint32": (writer.add_uint32, 4_000_000_000),
        "a.int32": (writer.add_int32, -70000),
        "a.uint64": (writer.add_uint64, 2**63),
        "a.int64": (writer.add_int64, -(2**40)),
        "a.float32": (writer.add_float32, 0.25),
        "a.float64": (writer.add_float64, 0.1),
        "a.bool": (writer.add_bool, True),
        "a.string": (writer.add_string, "naïve ☃"),
        "a.strings": (writer.add_array, ["", "Ġ t", "日本", "x" * 300]),
        "a.ints": (writer.add_array, [1, -2, 3]),
        "a.floats": (writer.add_array, [0.5, -1.5]),
        "a.bools": (writer.add_array, [True, False]),
    }
    for key, (add, value) in values.items():
        add(key, value)
    tensor = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("first.weight", tensor)
    writer.add_tensor("second.weight", tensor[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GGUFFile(path)
    assert file.version == 3
    assert {key: file.metadata[key] for key in values} == {key: value for key, (_, value) in values.items()}
    assert type(file.metadata["a.bool"]) is bool
    assert {name: info.shape for name, info in file.tensors.items()} == {"first.weight": (3, 4), "second.weight": (4,)}
    assert file.raw("first.weight").shape == (3, 16)
    assert torch.equal(file.raw("first.weight").view(torch.float32), torch.from_numpy(tensor))


def test_file_reads_nested_arrays_and_an_own_alignment(save: Any, raw_gguf: Any) -> None:
    inner = [struct.pack("<IQ", U32, 2) + struct.pack("<2I", 1, 2), struct.pack("<IQ", U32, 0)]
    nested = raw_gguf.metadata("n", ARRAY, struct.pack("<IQ", ARRAY, 2) + b"".join(inner))
    alignment = raw_gguf.metadata("general.alignment", U32, struct.pack("<I", 64))
    content = raw_gguf.file([nested, alignment], [raw_gguf.tensor("t", [2], 0, 0)])
    content += bytes(-len(content) % 64) + struct.pack("<2f", 1.0, 2.0)
    file = GGUFFile(save(content))
    assert file.metadata["n"] == [[1, 2], []]
    assert file.raw("t").view(torch.float32).tolist() == [[1.0, 2.0]]


def test_raw_writes_never_reach_the_file(save: Any, raw_gguf: Any) -> None:
    path = save(raw_gguf.file([], [raw_gguf.tensor("t", [4], 0, 0)], bytes(16)))
    before = path.read_bytes()
    raw = GGUFFile(path).raw("t")
    raw.fill_(255)
    assert path.read_bytes() == before
    assert GGUFFile(path).raw("t").sum() == 0


def test_raw_outlives_close(save: Any, raw_gguf: Any) -> None:
    file = GGUFFile(save(raw_gguf.file([], [raw_gguf.tensor("t", [1], 0, 0)], struct.pack("<f", 2.5))))
    raw = file.raw("t")
    file.close()
    assert raw.view(torch.float32).item() == 2.5
    with pytest.raises(AssertionError, match="closed"):
        file.raw("t")


def test_raw_of_a_missing_tensor_names_near_matches(save: Any, raw_gguf: Any) -> None:
    file = GGUFFile(save(raw_gguf.file([], [raw_gguf.tensor("output.weight", [1], 0, 0)], bytes(4))))
    with pytest.raises(ModelError, match=r"no tensor 'outputs\.weight'.*Did you mean 'output\.weight'"):
        file.raw("outputs.weight")


def test_every_truncation_is_refused(tmp_path: Path, tiny: Any) -> None:
    kind = gguf.GGMLQuantizationType.Q4_0
    content = tiny.write_gguf(tmp_path / "whole.gguf", tiny.weights(), tiny.gguf_options(kind)).read_bytes()
    whole = GGUFFile(tmp_path / "whole.gguf")
    end = max(info.offset + info.num_bytes for info in whole.tensors.values())
    lengths = [*range(0, whole.data_start, 13), *range(whole.data_start, end, 1021), whole.data_start - 1, end - 1]
    path = tmp_path / "cut.gguf"
    for length in lengths:
        path.write_bytes(content[:length])
        assert "cut.gguf" in refusal(path)


def test_flipped_header_bytes_are_read_or_refused(tmp_path: Path, tiny: Any) -> None:
    content = bytearray(tiny.write_gguf(tmp_path / "whole.gguf", tiny.weights()).read_bytes())
    data_start = GGUFFile(tmp_path / "whole.gguf").data_start
    generator = np.random.default_rng(0)
    path = tmp_path / "flipped.gguf"
    num_refused = 0
    for _ in range(400):
        position, mask = int(generator.integers(data_start)), int(generator.integers(1, 256))
        content[position] ^= mask
        path.write_bytes(content)
        content[position] ^= mask
        try:
            GGUFFile(path)
        except ModelError:
            num_refused += 1
    assert 50 < num_refused < 400


def test_missing_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "absent.gguf")


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 a zip file", b"FUGG" + bytes(64)])
def test_file_without_the_magic_is_refused(save: Any, content: bytes) -> None:
    assert "not a GGUF file" in refusal(save(content))


@pytest.mark.parametrize(
    ("version", "expected"),
    [(1, "version 1"), (4, "version 4"), (3 << 24, "big-endian"), (2**32 - 1, "versions 2 and 3")],
)
def test_other_versions_are_refused(save: Any, raw_gguf: Any, version: int, expected: str) -> None:
    assert expected in refusal(save(raw_gguf.file(version=version)))


def test_version_2_is_read(save: Any, raw_gguf: Any) -> None:
    assert GGUFFile(save(raw_gguf.file(version=2))).version == 2


@pytest.mark.parametrize("count", [2**63, 2**40, 1000])
def test_absurd_counts_are_refused(save: Any, raw_gguf: Any, count: int) -> None:
    assert f"announces {count} tensors" in refusal(save(raw_gguf.file(num_tensors=count)))
    assert f"announces {count} metadata keys" in refusal(save(raw_gguf.file(num_metadata=count)))


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 2**20, 500])
def test_absurd_string_lengths_are_refused(save: Any, raw_gguf: Any, length: int) -> None:
    in_value = raw_gguf.metadata("key", STRING, struct.pack("<Q", length))
    assert "'key'" in refusal(save(raw_gguf.file([in_value], data=bytes(64))))
    in_array = raw_gguf.metadata("key", ARRAY, struct.pack("<IQQ", STRING, 2, length))
    assert "'key' has string 0" in refusal(save(raw_gguf.file([in_array], data=bytes(64))))
    in_key = struct.pack("<Q", length) + bytes(32)
    assert "metadata key 0" in refusal(save(raw_gguf.file([in_key])))


@pytest.mark.parametrize("excess", range(1, 9))
def test_string_that_ends_just_past_the_file_is_refused(save: Any, raw_gguf: Any, excess: int) -> None:
    items = raw_gguf.string("a") + struct.pack("<Q", 4 + excess)
    entry = raw_gguf.metadata("key", ARRAY, struct.pack("<IQ", STRING, 2) + items)
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry + b"last"
    assert "'key' has string 1 end at byte" in refusal(save(content))


@pytest.mark.parametrize("item_type", [U8, U32, STRING, ARRAY, U64])
@pytest.mark.parametrize("count", [2**64 - 1, 2**40, 2**22, 500])
def test_absurd_array_lengths_are_refused(save: Any, raw_gguf: Any, item_type: int, count: int) -> None:
    entry = raw_gguf.metadata("key", ARRAY, struct.pack("<IQ", item_type, count))
    assert "'key'" in refusal(save(raw_gguf.file([entry], data=bytes(64))))


def test_deeply_nested_arrays_are_refused(save: Any, raw_gguf: Any) -> None:
    entry = raw_gguf.metadata("key", ARRAY, struct.pack("<IQ", ARRAY, 1) * 2000)
    assert "nests arrays deeper" in refusal(save(raw_gguf.file([entry])))


@pytest.mark.parametrize("type_id", [13, 255, 2**32 - 1])
def test_unknown_value_types_are_refused(save: Any, raw_gguf: Any, type_id: int) -> None:
    assert f"'key' has the unknown value type {type_id}" in refusal(
        save(raw_gguf.file([raw_gguf.metadata("key", type_id, bytes(8))]))
    )
    in_array = raw_gguf.metadata("key", ARRAY, struct.pack("<IQ", type_id, 1) + bytes(8))
    assert f"'key' has the unknown value type {type_id}" in refusal(save(raw_gguf.file([in_array])))


def test_invalid_utf8_is_refused(save: Any, raw_gguf: Any) -> None:
    entry = raw_gguf.metadata("key", STRING, raw_gguf.string(b"ok\xff"))
    assert "'key' is not valid UTF-8" in refusal(save(raw_gguf.file([entry])))
    items = raw_gguf.string("fine") + raw_gguf.string(b"\xc3")
    entry = raw_gguf.metadata("key", ARRAY, struct.pack("<IQ", STRING, 2) + items)
    assert "'key' has string 1 that is not valid UTF-8" in refusal(save(raw_gguf.file([entry])))


def test_repeated_and_empty_names_are_refused(save: Any, raw_gguf: Any) -> None:
    entry = raw_gguf.metadata("key", U8, b"\x01")
    assert "metadata key 'key' appears twice" in refusal(save(raw_gguf.file([entry, entry])))
    assert "metadata key 0 is empty" in refusal(save(raw_gguf.file([raw_gguf.metadata("", U8, b"\x01")])))
    tensors = [raw_gguf.tensor("t", [1], 0, 0), raw_gguf.tensor("t", [1], 0, 32)]
    assert "tensor 't' appears twice" in refusal(save(raw_gguf.file([], tensors, bytes(64))))


@pytest.mark.parametrize("value", [0, 7, 12])
def test_wrong_alignment_is_refused(save: Any, raw_gguf: Any, value: int) -> None:
    entry = raw_gguf.metadata("general.alignment", U32, struct.pack("<I", value))
    assert "'general.alignment'" in refusal(save(raw_gguf.file([entry])))


def test_alignment_of_another_type_is_refused(save: Any, raw_gguf: Any) -> None:
    entry = raw_gguf.metadata("general.alignment", STRING, raw_gguf.string("32"))
    assert "'general.alignment' must be a multiple of 8, got '32'" in refusal(save(raw_gguf.file([entry])))
    entry = raw_gguf.metadata("general.alignment", BOOL, b"\x01")
    assert "got True" in refusal(save(raw_gguf.file([entry])))
    entry = raw_gguf.metadata("general.alignment", F32, struct.pack("<f", 32.0))
    assert "got 32.0" in refusal(save(raw_gguf.file([entry])))


@pytest.mark.parametrize(("type_id", "name"), [(15, "Q8_K"), (41, "Q1_0"), (99, "unknown")])
def test_unsupported_tensor_types_are_refused_by_name(save: Any, raw_gguf: Any, type_id: int, name: str) -> None:
    message = refusal(save(raw_gguf.file([], [raw_gguf.tensor("some.weight", [256], type_id, 0)], bytes(512))))
    assert f"tensor 'some.weight' has type {name} (number {type_id})" in message
    assert "Q4_K" in message


@pytest.mark.parametrize(
    ("dims", "type_id", "offset", "expected"),
    [
        ([], 0, 0, "has 0 dimensions"),
        ([1] * 5, 0, 0, "has 5 dimensions"),
        ([4, 0], 0, 0, "every dimension must be at least 1"),
        ([33], 2, 0, "the last one a multiple of 32"),
        ([128, 2], 14, 0, "the last one a multiple of 256"),
        ([4], 0, 16, "not a multiple of the alignment 32"),
        ([17], 0, 0, "needs bytes"),
        ([4], 0, 2**63, "needs bytes"),
        ([2**63, 2**63], 0, 0, "needs bytes"),
        ([4], 0, 64, "needs bytes"),
    ],
)
def test_impossible_tensors_are_refused(
    save: Any, raw_gguf: Any, dims: list[int], type_id: int, offset: int, expected: str
) -> None:
    message = refusal(save(raw_gguf.file([], [raw_gguf.tensor("some.weight", dims, type_id, offset)], bytes(64))))
    assert "'some.weight'" in message
    assert expected in message


def test_overlapping_tensors_are_refused(save: Any, raw_gguf: Any) -> None:
    tensors = [raw_gguf.tensor("late", [16], 0, 32), raw_gguf.tensor("early", [9], 0, 0)]
    assert "tensors 'early' and 'late' overlap" in refusal(save(raw_gguf.file([], tensors, bytes(96))))
