"""Exports to a Hugging Face folder: equal weights, config and tokenizer when read back; all of it or nothing."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tokenizers import decoders, normalizers, pre_tokenizers

from tests.byte_level_vocabulary import CHATML, CONTROLS, byte_level_metadata
from tests.core.loader.gguf_conversion import Conversion, write_gguf
from tests.core.loader.hf_families import FAMILY_CONFIGS, write_hf_family
from tests.core.text import tiny_sentencepiece
from tests.tiny_model import write_byte_tokenizer
from tokenloom.checkpoint.base import Checkpoint
from tokenloom.errors import ModelError
from tokenloom.loader import export_tokenizer
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.loader.export_folder import ExportOptions, export_folder
from tokenloom.loader.gguf_checkpoint import GGUFCheckpoint
from tokenloom.loader.hf_checkpoint import HFCheckpoint
from tokenloom.models.llama import LlamaArchitecture
from tokenloom.text import Tokenizer, build_tokenizer

VOCAB_SIZE = 432
TEXTS = (
    "Hello, world! It's 12345.",
    "  spaces \t\n\n ends ",
    "<|im_start|>user\nhi<|im_end|>\n<tool_call>x",
    "é e\u0301 日本語 😀 \x00",
    "",
)


def write_folder(folder: Path, family: str = "llama", **changes: Any) -> Path:
    write_hf_family(folder, family, {"vocab_size": VOCAB_SIZE, **changes})
    write_byte_tokenizer(folder)
    return folder


def make_gguf(tmp_path: Path, family: str = "llama", metadata: dict[str, Any] | None = None, **options: Any) -> Path:
    metadata = metadata or byte_level_metadata("qwen2" if family == "qwen2" else "smollm")
    folder = write_hf_family(tmp_path / "hf", family, {"vocab_size": VOCAB_SIZE, **options.pop("changes", {})})
    conversion = Conversion(metadata=metadata, **options)
    return write_gguf(folder, tmp_path / "m.gguf", conversion)


def refusal(path: Path, target: Path, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        export_folder(open_checkpoint(path), target, ExportOptions(**options))
    return str(caught.value)


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    return build_tokenizer(checkpoint.tokenizer_source(), checkpoint.config.vocab_size)


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_exported_gguf_reads_back_equal(tmp_path: Path, family: str) -> None:
    original = open_checkpoint(make_gguf(tmp_path, family))
    assert isinstance(original, GGUFCheckpoint)
    export_folder(original, tmp_path / "out", ExportOptions("float32"))
    exported = open_checkpoint(tmp_path / "out")
    assert isinstance(exported, HFCheckpoint)
    assert exported.config == original.config
    assert sorted(exported.tensor_names()) == sorted(original.tensor_names())
    for name in original.tensor_names():
        assert torch.equal(exported.load(name), original.load(name, torch.float32)), name


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_exported_folder_reads_back_equal(tmp_path: Path, family: str) -> None:
    folder = write_folder(tmp_path / "in", family)
    (folder / "chat_template.jinja").write_text(CHATML)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 9], "temperature": 0.6}')
    original = open_checkpoint(folder)
    export_folder(original, tmp_path / "out")
    exported = open_checkpoint(tmp_path / "out")
    assert exported.config == original.config
    assert exported.config.eos_token_ids == (2, 9)
    for name in original.tensor_names():
        assert torch.equal(exported.load(name), original.load(name)), name
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["temperature"] == 0.6


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        ("F32", "auto", "float32"),
        ("F16", "auto", "float16"),
        ("Q8_0", "auto", "bfloat16"),
        ("Q8_0", "float32", "float32"),
        ("F32", "bfloat16", "bfloat16"),
        ("F32", "float16", "float16"),
    ],
)
def test_dtype_is_the_files_own_or_the_one_asked_for(tmp_path: Path, kind: str, dtype: Any, expected: str) -> None:
    changes = {"head_dim": 32}
    path = make_gguf(tmp_path, kind=gguf.GGMLQuantizationType[kind], changes=changes)
    export_folder(open_checkpoint(path), tmp_path / "out", ExportOptions(dtype))
    exported = open_checkpoint(tmp_path / "out")
    assert exported.config.dtype == expected
    original = open_checkpoint(path)
    for name in original.tensor_names():
        tensor = exported.load(name)
        assert str(tensor.dtype) == f"torch.{expected}"
        assert torch.equal(tensor, original.load(name, torch.float32).to(tensor.dtype)), name


def test_shards_are_no_larger_than_asked_and_have_an_index(tmp_path: Path) -> None:
    original = open_checkpoint(make_gguf(tmp_path))
    largest = max(original.load(name, torch.float32).nbytes for name in original.tensor_names())
    export_folder(original, tmp_path / "out", ExportOptions("float32", max_shard_bytes=largest))
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    shards = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(shards) > 2
    assert [shard.name for shard in shards] == [
        f"model-{number + 1:05}-of-{len(shards):05}.safetensors" for number in range(len(shards))
    ]
    assert set(index["weight_map"].values()) == {shard.name for shard in shards}
    exported = open_checkpoint(tmp_path / "out")
    sizes: dict[str, int] = {}
    for name in original.tensor_names():
        tensor = exported.load(name)
        assert torch.equal(tensor, original.load(name, torch.float32))
        assert exported.file_of(name).name == index["weight_map"][name]
        sizes[index["weight_map"][name]] = sizes.get(index["weight_map"][name], 0) + tensor.nbytes
    assert max(sizes.values()) <= largest
    assert index["metadata"]["total_size"] == sum(sizes.values())


def test_tensor_larger_than_a_shard_is_written_all_the_same(tmp_path: Path) -> None:
    original = open_checkpoint(make_gguf(tmp_path))
    export_folder(original, tmp_path / "out", ExportOptions(max_shard_bytes=1))
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == len(original.tensor_names())


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2"])
@pytest.mark.parametrize("around", [(False, False), (True, False), (True, True)])
def test_byte_level_tokenizer_encodes_and_decodes_equal(tmp_path: Path, pre: str, around: tuple[bool, bool]) -> None:
    metadata = byte_level_metadata(pre, add_bos_token=around[0], add_eos_token=around[1])
    original = open_checkpoint(make_gguf(tmp_path, metadata=metadata))
    export_folder(original, tmp_path / "out")
    before, after = tokenizer_of(original), tokenizer_of(open_checkpoint(tmp_path / "out"))
    assert_equal(before, after)
    assert after.encode("a")[0] == 1 if around[0] else after.encode("a")[0] != 1


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("space_prefix", [True, False])
def test_sentencepiece_tokenizer_encodes_and_decodes_equal(tmp_path: Path, kind: str, space_prefix: bool) -> None:
    file = tiny_sentencepiece.train(kind)
    metadata = tiny_sentencepiece.gguf_metadata(file, "llama" if kind == "bpe" else "t5", space_prefix=space_prefix)
    original = open_checkpoint(make_gguf(tmp_path, metadata=metadata))
    export_folder(original, tmp_path / "out")
    assert_equal(tokenizer_of(original), tokenizer_of(open_checkpoint(tmp_path / "out")))


def assert_equal(before: Tokenizer, after: Tokenizer) -> None:
    assert (after.bos_token_id, after.named_tokens) == (before.bos_token_id, before.named_tokens)
    assert after.special_token_ids == before.special_token_ids
    assert after.chat_template == before.chat_template
    for text in TEXTS:
        for add_special_tokens in (True, False):
            for allow_special in (True, False):
                ids = before.encode(text, add_special_tokens=add_special_tokens, allow_special=allow_special)
                found = after.encode(text, add_special_tokens=add_special_tokens, allow_special=allow_special)
                assert found == ids, text
                assert after.decode(ids) == before.decode(ids)
    every = list(range(before.vocab_size))
    assert [after.token_bytes(token_id) for token_id in every] == [before.token_bytes(token_id) for token_id in every]


def test_end_tokens_all_reach_the_folder(tmp_path: Path) -> None:
    original = open_checkpoint(make_gguf(tmp_path, metadata=byte_level_metadata(eot_token_id=0)))
    assert original.config.eos_token_ids == (2, 0)
    export_folder(original, tmp_path / "out")
    assert open_checkpoint(tmp_path / "out").config.eos_token_ids == (2, 0)
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == [2, 0]


@pytest.mark.parametrize("part", ["pre_tokenizer", "normalizer", "decoder"])
def test_tokenizer_that_would_change_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """A step that gets lost when the tokenizer is written."""
    real = export_tokenizer._library_for_others
    losses = {
        "pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "normalizer": normalizers.Sequence([]),
        "decoder": decoders.Fuse(),
    }

    def lossy(parts: Any, source: Any) -> Any:
        library = real(parts, source)
        setattr(library, part, losses[part])
        return library

    monkeypatch.setattr(export_tokenizer, "_library_for_others", lossy)
    message = refusal(make_gguf(tmp_path, metadata=byte_level_metadata("qwen2")), tmp_path / "out")
    assert "tokenizer.ggml.model='gpt2', tokenizer.ggml.pre='qwen2'" in message
    assert "cannot be written exactly" in message
    assert not (tmp_path / "out").exists()


def test_config_that_would_change_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = LlamaArchitecture.config_json

    def lossy(self: LlamaArchitecture, config: Any) -> dict[str, Any]:
        return {**real(self, config), "rope_theta": 1.5, "rms_norm_eps": 1e-3}

    monkeypatch.setattr(LlamaArchitecture, "config_json", lossy)
    message = refusal(make_gguf(tmp_path), tmp_path / "out")
    assert "cannot express this model's rms_norm_eps, ropes" in message
    assert not (tmp_path / "out").exists()


def test_quantized_folder_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in", quantization_config={"quant_method": "gptq", "bits": 4})
    assert "quant_method='gptq'" in refusal(folder, tmp_path / "out")


def test_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = write_hf_family(tmp_path / "in", "llama", {"vocab_size": VOCAB_SIZE})
    assert "tokenizer" in refusal(folder, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_nothing_is_written_over_without_being_asked(tmp_path: Path) -> None:
    path, target = make_gguf(tmp_path), tmp_path / "out"
    target.mkdir()
    export_folder(open_checkpoint(path), target)  # an empty folder is as good as none
    before = {file.name: file.read_bytes() for file in target.iterdir()}
    assert "replace the model in it with --force" in refusal(path, target)
    (target / "model-00001-of-00002.safetensors").write_bytes(b"of an older export")
    export_folder(open_checkpoint(path), target, ExportOptions(is_replacing=True))
    assert {file.name: file.read_bytes() for file in target.iterdir()} == before


def test_folder_that_holds_no_model_is_never_replaced(tmp_path: Path) -> None:
    path, target = make_gguf(tmp_path), tmp_path / "out"
    target.mkdir()
    (target / "thesis.txt").write_text("all of it")
    assert "holds no model that could be replaced: 'thesis.txt' is no file" in refusal(path, target, is_replacing=True)
    assert (target / "thesis.txt").read_text() == "all of it"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"thesis.txt": "all of it"}, "'thesis.txt' is no file of a model's folder"),
        ({"model.py": ""}, "'model.py' is no file"),
        ({".git/HEAD": ""}, "'.git' is no file"),
        ({"src/main.c": ""}, "'src' is no file"),
        ({"model-1.safetensors": ""}, "'model-1.safetensors' is no file"),
        ({"tokenizer.json": None, "tokenizer.json/a": ""}, "'tokenizer.json' is no file"),
        ({"config.json": None}, "it has no config.json"),
        ({"config.json": '{"port": 80}'}, "its config.json has no 'model_type'"),
        ({"config.json": '{"model_type": 3}'}, "its config.json has no 'model_type'"),
        ({"config.json": "[]"}, "must hold a JSON object"),
        ({"config.json": "{"}, "cannot read"),
        ({"model.safetensors": None}, "it has no weights"),
    ],
)
def test_only_a_folder_that_is_all_model_is_replaced(
    tmp_path: Path, changes: dict[str, str | None], expected: str
) -> None:
    """config.json is a common name: of a program, a web site, a repository that has a model among other things."""
    path, target = make_gguf(tmp_path), write_folder(tmp_path / "out")
    for name, content in changes.items():
        file = target / name
        if content is None:
            file.unlink()
        else:
            file.parent.mkdir(exist_ok=True)
            file.write_text(content)
    before = {file: file.read_bytes() for file in target.rglob("*") if file.is_file()}
    message = refusal(path, target, is_replacing=True)
    assert "holds no model that could be replaced" in message
    assert expected in message
    assert {file: file.read_bytes() for file in target.rglob("*") if file.is_file()} == before


def test_what_is_put_into_the_folder_meanwhile_is_not_lost(tmp_path: Path) -> None:
    path, target = make_gguf(tmp_path), write_folder(tmp_path / "out")

    def put(stage: str, done: int, total: int) -> None:
        (target / "notes.txt").write_text("new")

    with pytest.raises(ModelError, match=r"'notes\.txt' is no file of a model's folder"):
        export_folder(open_checkpoint(path), target, ExportOptions(is_replacing=True), put)
    assert (target / "notes.txt").read_text() == "new"


def test_model_is_never_exported_over_itself(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in")
    link = tmp_path / "link"
    link.symlink_to(folder)
    for target in (folder, link):
        assert "holds the model that is to be exported" in refusal(folder, target, is_replacing=True)
    assert open_checkpoint(folder).tensor_names()


@pytest.mark.parametrize("name", ["file", "absent/out"])
def test_impossible_target_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    assert str(tmp_path) in refusal(make_gguf(tmp_path), tmp_path / name)


@pytest.mark.parametrize("is_there", [True, False])
def test_interrupted_export_leaves_everything_as_it_was(tmp_path: Path, is_there: bool) -> None:
    path, target = make_gguf(tmp_path), tmp_path / "out"
    if is_there:
        write_folder(target)
    before = sorted(file.relative_to(tmp_path) for file in tmp_path.rglob("*"))

    def interrupt(stage: str, done: int, total: int) -> None:
        if done == total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_folder(open_checkpoint(path), target, ExportOptions(is_replacing=True, max_shard_bytes=1), interrupt)
    assert sorted(file.relative_to(tmp_path) for file in tmp_path.rglob("*")) == before


def test_failure_while_taking_its_place_restores_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = make_gguf(tmp_path), write_folder(tmp_path / "out")
    real = Path.rename

    def failing(self: Path, other: Path) -> Path:
        if self.name == "new":
            raise OSError(28, "No space left on device")
        return real(self, other)

    before = {file.name: file.read_bytes() for file in target.iterdir()}
    monkeypatch.setattr(Path, "rename", failing)
    assert "No space left" in refusal(path, target, is_replacing=True)
    assert {file.name: file.read_bytes() for file in target.iterdir()} == before


@pytest.mark.parametrize("moved", ["out", "new"])
def test_interrupt_while_taking_its_place_loses_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: str
) -> None:
    """Right behind either move: between the two, no folder has the name."""
    path, target = make_gguf(tmp_path), write_folder(tmp_path / "out")
    old = {file.name: file.read_bytes() for file in target.iterdir()}
    real = Path.rename

    def interrupted(self: Path, other: Path) -> Path:
        result = real(self, other)
        if self.name == moved:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_folder(open_checkpoint(path), target, ExportOptions(is_replacing=True))
    found = {file.name: file.read_bytes() for file in target.iterdir()}
    assert (found == old) is (moved == "out")
    assert open_checkpoint(target).tensor_names()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["hf", "m.gguf", "out"], "and nothing is left behind"


def test_model_that_cannot_be_moved_back_is_kept_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, target = make_gguf(tmp_path), write_folder(tmp_path / "out")
    old = {file.name: file.read_bytes() for file in target.iterdir()}
    real = Path.rename

    def failing(self: Path, other: Path) -> Path:
        if self.name == "new" or self.name.endswith("-old"):
            raise OSError(5, "Input/output error")
        return real(self, other)

    monkeypatch.setattr(Path, "rename", failing)
    message = refusal(path, target, is_replacing=True)
    (kept,) = tmp_path.glob(".out-*-old")
    assert f"its former content lies in {kept}" in message
    assert {file.name: file.read_bytes() for file in kept.iterdir()} == old


def test_progress_counts_every_tensor(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    original = open_checkpoint(make_gguf(tmp_path))
    export_folder(original, tmp_path / "out", progress=lambda *step: seen.append(step))
    count = len(original.tensor_names())
    assert seen == [("writing weights", done, count) for done in range(count + 1)]


def test_files_can_be_read_by_whoever_may_read_the_folder(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        written = export_folder(open_checkpoint(make_gguf(tmp_path)), tmp_path / "out")
    finally:
        os.umask(mask)
    assert {stat.S_IMODE(file.stat().st_mode) for file in written} == {0o644}
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755


def test_control_tokens_are_special_for_others(tmp_path: Path) -> None:
    export_folder(open_checkpoint(make_gguf(tmp_path)), tmp_path / "out")
    added = json.loads((tmp_path / "out" / "tokenizer.json").read_text())["added_tokens"]
    assert {token["content"] for token in added if token["special"]} == set(CONTROLS)
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["eos_token"], settings["chat_template"]) == (*CONTROLS[1:], CHATML)
