"""hf: sources against a hub on localhost: what is fetched, resumed, refused, and used without a network."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from tests.fake_hub import FakeHub
from tokenloom.errors import ConfigError, ModelError
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.loader.hub_source import HubFetcher, HubSpec

OTHER_COPIES = {
    "pytorch_model.bin": b"pickle",
    "onnx/model.onnx": b"onnx",
    "original/consolidated.00.pth": b"original",
    "consolidated.safetensors": b"another copy",
    "tf_model.h5": b"tensorflow",
    "README.md": b"read me",
    ".gitattributes": b"attributes",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("HF_TOKEN", "TOKENLOOM_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with FakeHub() as hub:
        yield hub


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


def fetch(hub: FakeHub, cache: Path, source: str, **options: Any) -> Path:
    return HubFetcher(progress=False, cache_dir=cache, endpoint=hub.url).fetch(HubSpec.parse(source), **options)


def refusal(hub: FakeHub, cache: Path, source: str, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        fetch(hub, cache, source, **options)
    return str(caught.value)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def hf_files(tiny: Any, folder: Path, num_shards: int = 1, seed: int = 0) -> dict[str, bytes]:
    tiny.write_hf(folder, tiny.weights(seed=seed), num_shards=num_shards)
    return {**files_of(folder), "tokenizer.json": b"{}", "chat_template.jinja": b"{{ messages }}"}


@pytest.mark.parametrize("num_shards", [1, 3])
def test_fetch_takes_config_tokenizer_and_safetensors_only(
    hub: FakeHub, cache: Path, tmp_path: Path, tiny: Any, num_shards: int
) -> None:
    files = hf_files(tiny, tmp_path / "m", num_shards)
    hub.add("org/name", {**files, **OTHER_COPIES})
    folder = fetch(hub, cache, "org/name")
    assert files_of(folder) == files
    assert hub.downloads() == sorted(files)
    checkpoint = open_checkpoint(folder)
    assert sorted(checkpoint.tensor_names()) == sorted(tiny.weights())
    assert folder.is_relative_to(cache)


def test_fetch_takes_only_the_shards_that_the_index_names(hub: FakeHub, cache: Path, tmp_path: Path, tiny: Any) -> None:
    files = hf_files(tiny, tmp_path / "m", 2)
    hub.add("org/name", {**files, "model-00001-of-00009.safetensors": b"of an older upload"})
    assert set(files_of(fetch(hub, cache, "org/name"))) == set(files)


def test_fetch_takes_pickles_where_there_is_nothing_else(hub: FakeHub, cache: Path) -> None:
    files = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    hub.add("org/name", {**files, "rust_model.ot": b"rust"})
    assert files_of(fetch(hub, cache, "org/name")) == files


def test_fetch_takes_drafting_heads_by_their_own_names(hub: FakeHub, cache: Path) -> None:
    files = {"config.json": b"{}", "medusa_lm_head.pt": b"pickle"}
    hub.add("org/heads", {**files, "README.md": b"read me"})
    assert files_of(fetch(hub, cache, "org/heads")) == files


def test_fetch_takes_the_only_gguf_file(hub: FakeHub, cache: Path) -> None:
    hub.add("org/name-GGUF", {"m.gguf": b"GGUF", "config.json": b"{}", "README.md": b"", "mmproj-m.gguf": b"GGUF"})
    path = fetch(hub, cache, "org/name-GGUF")
    assert (path.name, path.read_bytes()) == ("m.gguf", b"GGUF")
    assert hub.downloads() == ["m.gguf"]


def test_several_gguf_files_are_listed_as_sources(hub: FakeHub, cache: Path) -> None:
    hub.add("org/name-GGUF", {"m.Q8_0.gguf": b"8", "q4/m.Q4_0.gguf": b"4"})
    message = refusal(hub, cache, "org/name-GGUF")
    assert "2 GGUF files" in message
    for source in ("hf:org/name-GGUF#m.Q8_0.gguf", "hf:org/name-GGUF#q4/m.Q4_0.gguf"):
        assert source in message
        assert fetch(hub, cache, source.removeprefix("hf:")).read_bytes() in (b"8", b"4")
    assert hub.downloads() == ["m.Q8_0.gguf", "q4/m.Q4_0.gguf"]


@pytest.mark.parametrize("name", ["m[1].gguf", "m*.gguf", "m?.gguf"])
def test_a_name_is_no_pattern(hub: FakeHub, cache: Path, name: str) -> None:
    hub.add("org/name", {name: b"wanted", "m1.gguf": b"other", "mm.gguf": b"other"})
    assert fetch(hub, cache, f"org/name#{name}").read_bytes() == b"wanted"


def test_unknown_file_is_refused_with_near_matches(hub: FakeHub, cache: Path) -> None:
    hub.add("org/name", {"m.Q4_0.gguf": b"4"})
    message = refusal(hub, cache, "org/name#m.Q4_1.gguf")
    assert "no file 'm.Q4_1.gguf'. Did you mean 'm.Q4_0.gguf'?" in message
    assert "hf:org/name#m.Q4_0.gguf" in message
    assert hub.downloads() == []


def test_repository_without_a_model_is_refused(hub: FakeHub, cache: Path) -> None:
    hub.add("org/name", {"config.json": b"{}", "tf_model.h5": b""})
    message = refusal(hub, cache, "org/name")
    assert "no model that can be read" in message
    assert "tf_model.h5" in message
    assert hub.downloads() == []


def test_index_that_names_what_is_not_there_is_refused_before_shards_are_fetched(
    hub: FakeHub, cache: Path, tmp_path: Path, tiny: Any
) -> None:
    files = hf_files(tiny, tmp_path / "m", 2)
    del files["model-00002-of-00002.safetensors"]
    hub.add("org/name", files)
    assert "its index names model-00002-of-00002.safetensors" in refusal(hub, cache, "org/name")
    assert hub.downloads() == ["model.safetensors.index.json"]


def test_index_cannot_name_a_file_elsewhere(hub: FakeHub, cache: Path) -> None:
    index = json.dumps({"weight_map": {"a": "../../evil"}}).encode()
    hub.add("org/name", {"config.json": b"{}", "model.safetensors.index.json": index})
    assert "must name a file of this folder" in refusal(hub, cache, "org/name")


def test_revisions_are_kept_apart(hub: FakeHub, cache: Path) -> None:
    first = hub.add("org/name", {"m.gguf": b"old"}, "v1.0")
    second = hub.add("org/name", {"m.gguf": b"new"})
    assert fetch(hub, cache, "org/name").read_bytes() == b"new"
    for revision in ("v1.0", first):
        path = fetch(hub, cache, f"org/name@{revision}")
        assert path.read_bytes() == b"old"
        assert path.parent.name == first
    assert fetch(hub, cache, f"org/name@{second}#m.gguf").read_bytes() == b"new"


def test_unknown_revision_is_refused(hub: FakeHub, cache: Path) -> None:
    hub.add("org/name", {"m.gguf": b"old"})
    assert "hf:org/name has no revision 'v2'" in refusal(hub, cache, "org/name@v2")


def test_moved_branch_is_followed(hub: FakeHub, cache: Path) -> None:
    hub.add("org/name", {"m.gguf": b"old"})
    fetch(hub, cache, "org/name")
    hub.add("org/name", {"m.gguf": b"new"})
    assert fetch(hub, cache, "org/name").read_bytes() == b"new"


def test_cached_files_are_not_fetched_again(hub: FakeHub, cache: Path, tmp_path: Path, tiny: Any) -> None:
    hub.add("org/name", hf_files(tiny, tmp_path / "m", 2))
    fetch(hub, cache, "org/name")
    hub.requests.clear()
    fetch(hub, cache, "org/name")
    assert hub.downloads() == []


def test_missing_repository_is_refused(hub: FakeHub, cache: Path) -> None:
    message = refusal(hub, cache, "org/nmae")
    assert "there is no model hf:org/nmae, or it is private" in message
    assert "HF_TOKEN" in message


def test_gated_repository_wants_a_token(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/name", {"m.gguf": b"secret"}, token="hf_secret", is_gated=True)
    message = refusal(hub, cache, "org/name")
    assert "hf:org/name is gated" in message
    assert "HF_TOKEN" in message
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert fetch(hub, cache, "org/name").read_bytes() == b"secret"


def test_private_repository_wants_a_token(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/name", {"m.gguf": b"secret"}, token="hf_secret")
    assert "or it is private" in refusal(hub, cache, "org/name")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert fetch(hub, cache, "org/name").read_bytes() == b"secret"


def test_connection_that_breaks_is_resumed(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    content = bytes(range(256)) * 400
    hub.add("org/name", {"m.gguf": content})
    hub.num_failures = 2
    assert fetch(hub, cache, "org/name").read_bytes() == content
    assert len([line for line in hub.requests if line.startswith("GET /org")]) == 3


def test_verify_finds_what_arrived_damaged(hub: FakeHub, cache: Path) -> None:
    hub.add("org/name", {"m.gguf": b"GGUF and more", "other.gguf": b"GGUF"})
    hub.corrupt = {"m.gguf"}
    message = refusal(hub, cache, "org/name#m.gguf", verify=True)
    assert "m.gguf is damaged" in message
    assert "delete" in message
    assert fetch(hub, cache, "org/name#other.gguf", verify=True).read_bytes() == b"GGUF"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_verify_reads_small_files_as_well(hub: FakeHub, cache: Path, tmp_path: Path, tiny: Any, name: str) -> None:
    hub.add("org/name", hf_files(tiny, tmp_path / "m"))
    folder = fetch(hub, cache, "org/name", verify=True)
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    assert f"{name} is damaged" in refusal(hub, cache, "org/name", verify=True)


def test_failing_hub_without_a_cached_model_is_an_error(
    hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.status = 503
    message = refusal(hub, cache, "org/name")
    for part in ("cannot fetch hf:org/name", "503", "not in the cache", "Check the network"):
        assert part in message


def test_unreachable_hub_leaves_what_is_cached_with_a_warning(
    hub: FakeHub, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.add("org/name", {"m.gguf": b"content"})
    fetch(hub, cache, "org/name")
    gone = HubFetcher(progress=False, cache_dir=cache, endpoint="http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING, "tokenloom"):
        assert gone.fetch(HubSpec.parse("org/name")).read_bytes() == b"content"
    assert "cannot ask the hub for hf:org/name" in caplog.text
    with pytest.raises(ModelError, match=r"cannot fetch hf:org/other: .*\n.*not in the cache"):
        gone.fetch(HubSpec.parse("org/other"))


def test_refusal_of_another_kind_is_shown(hub: FakeHub, cache: Path) -> None:
    hub.add("org/name", {"m.gguf": b"content"})
    fetch(hub, cache, "org/name")
    hub.status = 451
    assert "the hub refuses hf:org/name" in refusal(hub, cache, "org/name")


def test_full_disk_is_no_network_error(hub: FakeHub, tmp_path: Path) -> None:
    hub.add("org/name", {"m.gguf": b"content"})
    blocked = tmp_path / "file"
    blocked.touch()
    assert "cannot store hf:org/name" in refusal(hub, blocked / "hub", "org/name")


@pytest.mark.parametrize("variable", ["TOKENLOOM_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_mode_asks_nobody(
    hub: FakeHub, cache: Path, tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    commit = hub.add("org/name", hf_files(tiny, tmp_path / "m", 2))
    hub.add("org/one", {"m.gguf": b"content"})
    online = [fetch(hub, cache, source) for source in ("org/name", "org/one#m.gguf")]
    hub.requests.clear()
    monkeypatch.setenv(variable, "1")
    sources = ("org/name", "org/one#m.gguf", f"org/name@{commit}", "org/name@main")
    assert [fetch(hub, cache, source, verify=True) for source in sources] == [*online, online[0], online[0]]
    for source in ("org/other", "org/name@v2", "org/name@../../refs/main"):
        assert refusal(hub, cache, source)
    assert hub.requests == []


def test_offline_mode_says_what_to_run(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLOOM_OFFLINE", "yes")
    message = refusal(hub, cache, "org/name@v1#m.gguf")
    assert "TOKENLOOM_OFFLINE=yes switches the network off" in message
    assert "'tokenloom models pull hf:org/name@v1#m.gguf'" in message


@pytest.mark.parametrize("lost", ["model-00002-of-00003.safetensors", "model.safetensors.index.json", "config.json"])
def test_offline_mode_refuses_what_is_cached_in_part(
    hub: FakeHub, cache: Path, tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    hub.add("org/name", hf_files(tiny, tmp_path / "m", 3))
    (fetch(hub, cache, "org/name") / lost).unlink()
    monkeypatch.setenv("TOKENLOOM_OFFLINE", "1")
    assert "cached in part only" in refusal(hub, cache, "org/name")


def test_offline_switch_of_another_word_is_refused(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLOOM_OFFLINE", "flase")
    with pytest.raises(ConfigError, match="TOKENLOOM_OFFLINE must be 1 or 0"):
        fetch(hub, cache, "org/name")
    assert hub.requests == []


@pytest.mark.parametrize("value", ["0", "", "off", "False"])
def test_offline_switch_can_be_off(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TOKENLOOM_OFFLINE", value)
    hub.add("org/name", {"m.gguf": b"content"})
    assert fetch(hub, cache, "org/name").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubSpec("org/name")),
        ("gpt2", HubSpec("gpt2")),
        ("org/name@refs/pr/1", HubSpec("org/name", "refs/pr/1")),
        ("org/name#a/b c.gguf", HubSpec("org/name", None, "a/b c.gguf")),
        ("org/name@v1.0#m@2.gguf", HubSpec("org/name", "v1.0", "m@2.gguf")),
    ],
)
def test_spec_reads_and_writes_its_form(text: str, expected: HubSpec) -> None:
    assert HubSpec.parse(text) == expected
    assert str(expected) == f"hf:{text}"


@pytest.mark.parametrize(
    "text",
    [
        *("", "a/b/c", "a b", "../x", "org/", "/name", "org/nàme"),
        *("org/name@", "org/name@../x", "org/name@a//b", "org/name@v 1"),
        *("org/name#", "org/name#../m.gguf", "org/name#/m.gguf", "org/name#a\\m.gguf", "org/name#m.bin"),
    ],
)
def test_spec_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="hf:"):
        HubSpec.parse(text)


def test_name_that_the_hub_forbids_is_refused(hub: FakeHub, cache: Path) -> None:
    assert "no name that the hub allows" in refusal(hub, cache, "org/na--me")
    assert hub.requests == []


def test_progress_setting_of_the_library_is_restored(hub: FakeHub, cache: Path, capfd: Any) -> None:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    hub.add("org/name", {"m.gguf": bytes(100_000)})
    before = are_progress_bars_disabled()
    fetch(hub, cache, "org/name")
    assert are_progress_bars_disabled() == before
    assert capfd.readouterr().err == ""
    hub.add("org/other", {"m.gguf": bytes(200_000)})
    HubFetcher(progress=True, cache_dir=cache, endpoint=hub.url).fetch(HubSpec.parse("org/other"))
    assert "Fetching 1 files" in capfd.readouterr().err
