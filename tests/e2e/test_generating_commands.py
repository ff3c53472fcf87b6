"""`tokenloom generate`, `chat` and `bench throughput` on the tiny model, as a person types them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tokenloom import LLM, SamplingParams
from tokenloom.cli import main


@pytest.fixture
def words(tiny_folder: Path) -> list[str]:
    """Overrides that make an engine of the tiny model."""
    return [f"model={tiny_folder}", "model.dtype=float32", "cache.num_blocks=100"]


def test_generate_streams_text_and_ends_with_times(
    words: list[str], tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "hello", *words, "max_tokens=12", "ignore_eos=true"]) == 0
    captured = capsys.readouterr()
    with LLM(str(tiny_folder), dtype="float32", num_blocks=100, show_progress=False) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        expected = llm.generate("hello", params)[0].outputs[0].text
    assert captured.out.rstrip("\n") == expected.rstrip("\n")
    for part in ("TTFT", "TPOT", "tokens/s", "12 tokens", "0 prompt tokens cached"):
        assert part in captured.err


def test_generate_takes_awkward_prompts(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--prompt", "a=b", *words, "max_tokens=2"]) == 0
    assert main(["generate", *words, "max_tokens=2", "--", "--not-an-option"]) == 0
    capsys.readouterr()
    assert main(["generate", "two", "texts", *words]) == 2
    assert "quote the prompt" in capsys.readouterr().err


def test_generate_reads_standard_input(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert main(["generate", *words, "max_tokens=2"]) == 0
    assert "TTFT" in capsys.readouterr().err


def test_generate_shows_every_choice(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "x", *words, "max_tokens=4", "n=2", "temperature=1.0", "seed=3"]) == 0
    assert "--- choice 0 ---" in (out := capsys.readouterr().out)
    assert "--- choice 1 ---" in out


def test_generate_takes_every_sampling_option(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        *(
            "temperature=0.8",
            "seed=4",
            "top_k=50",
            "min_p=0.01",
            "min_tokens=3",
            "max_tokens=20",
            "stop_token_ids=[66]",
        ),
        *("repetition_penalty=1.1", "presence_penalty=0.5", "frequency_penalty=-0.1", "logit_bias={65: 3.5, 67:-1}"),
        *("allowed_token_ids=[65,66,67,68]", "bad_words=[AA,BB]", "logits_processors={no_repeat_ngram:{size:4}}"),
    ]
    assert main(["generate", "x", *words, *options]) == 0
    text = capsys.readouterr().out.strip()
    assert set(text) <= set("ACD")
    assert len(text) >= 3
    assert "AA" not in text


def test_verbose_prints_the_memory_breakdown(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "x", *words, "max_tokens=1", "-v"]) == 0
    err = capsys.readouterr().err
    for part in (
        "attention=native_cpu",
        "threads",
        "on CPUs",
        "weights",
        "kv_cache",
        "activation_peak",
        "workspace",
        "float32",
        "group 0",
    ):
        assert part in err


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("temperature=-1", "temperature"),
        ("top_p=2", "top_p"),
        ("repetition_penalty=0", "repetition_penalty"),
        ("logit_bias={1:1000}", "logit_bias"),
        ("logit_bias={x:1}", "logit_bias"),
        ("allowed_token_ids=[]", "allowed_token_ids"),
        ("allowed_token_ids=[100000]", "vocabulary"),
        ("logits_processors={no_repeat:{}}", "no_repeat_ngram"),
        ("logits_processors={no_repeat_ngram:{sise:2}}", "Did you mean 'size'?"),
        ("logits_processor=no_repeat_ngram", "logits_processors"),
        ("max_tokens=0", "max_tokens"),
        ("temprature=1", "temperature"),
        ("attention=nope", "torch_sdpa"),
        ("scheduler.max_num_seq=3", "scheduler.max_num_seqs"),
        ("model=/no/such/model", "/no/such/model"),
        ("engine.pipeline_depth=2", "async_launch"),
    ],
)
def test_mistakes_are_one_clear_message(
    words: list[str], word: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "x", *words, word]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error:")
    assert part in err
    assert "Traceback" not in err


def test_chat_keeps_the_conversation(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n\nagain\n/reset\nonce more\n/exit\nnever\n"))
    assert main(["chat", *words, "max_tokens=3", "cache.block_size=4"]) == 0
    err = capsys.readouterr().err
    assert err.count("TTFT") == 3
    # The second turn finds the first one in the prefix cache.
    assert "[TTFT" in err
    cached = [int(line.split(", ")[-1].split(" ")[0]) for line in err.splitlines() if line.startswith("[TTFT")]
    assert cached[0] == 0
    assert cached[1] > 0


def test_bench_writes_figures_and_tokens(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = [{"prompt": [1, 2, 3], "max_tokens": 5}, {"prompt": [4, 5], "max_tokens": 2}]
    (tmp_path / "work.json").write_text(json.dumps(workload))
    files = [
        f"{name}={tmp_path / file}"
        for name, file in (("workload", "work.json"), ("output", "out.json"), ("dump_tokens", "ids.json"))
    ]
    assert main(["bench", "throughput", *words, *files, "repetitions=3"]) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["num_output_tokens"] == 7
    assert result["num_prompt_tokens"] == 5
    assert result["output_tok_s"] == pytest.approx(7 / result["wall_s"])
    assert result["total_tok_s"] == pytest.approx(12 / result["wall_s"])
    assert len(result["repetitions_wall_s"]) == 3
    assert sorted(result["repetitions_wall_s"])[1] == result["wall_s"]
    assert result["config"]["cache"]["num_blocks"] == 100
    assert result["provenance"]["packages"]["torch"]
    assert result["seed"] == 0
    assert {"p50", "p90", "p95", "p99"} <= set(result["latency"]["itl_s"])
    ids = json.loads((tmp_path / "ids.json").read_text())
    assert [len(row) for row in ids] == [5, 2]
    assert "output tokens/s" in capsys.readouterr().out


def test_bench_refuses_a_missing_folder_before_loading(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work.json").write_text('[{"prompt": [1], "max_tokens": 1}]')
    output = f"output={tmp_path / 'missing' / 'out.json'}"
    assert main(["bench", "throughput", *words, f"workload={tmp_path / 'work.json'}", output]) == 2
    assert "folder does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["output", "dump_tokens"])
def test_bench_refuses_a_trace_that_its_result_would_overwrite(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    (tmp_path / "work.json").write_text('[{"prompt": [1], "max_tokens": 1}]')
    own = [f"{name}={tmp_path / 'a.json'}" for name in (key, "trace.file")]
    assert main(["bench", "throughput", *words, f"workload={tmp_path / 'work.json'}", *own]) == 2
    assert f"{key} and trace.file name the same file" in capsys.readouterr().err
    assert not (tmp_path / "a.json").exists()


def test_bench_compares_configurations_in_turn(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = [{"prompt": list(range(1, 40)), "max_tokens": 3}, {"prompt": list(range(1, 40)), "max_tokens": 2}]
    (tmp_path / "work.json").write_text(json.dumps(work), encoding="utf-8")
    files = [f"{name}={tmp_path / name}.json" for name in ("output", "dump_tokens")]
    sweep = ["cache=none,hash", "scheduler.max_num_seqs=1,2", "repetitions=2"]
    assert main(["bench", "throughput", *words, f"workload={tmp_path / 'work.json'}", *files, *sweep]) == 0
    names = [f"cache={cache} scheduler.max_num_seqs={size}" for cache in ("none", "hash") for size in (1, 2)]
    table = capsys.readouterr().out
    assert [line[: line.index("  ")].strip() for line in table.splitlines() if "max_num_seqs" in line] == names
    results = json.loads((tmp_path / "output.json").read_text(encoding="utf-8"))
    assert list(results) == names
    assert all(len(result["repetitions_wall_s"]) == 2 for result in results.values())
    cached = [result["engine"]["num_cached_tokens"] for result in results.values()]
    assert cached[:2] == [0, 0]
    assert cached[2] == 32  # one after the other, the second request finds the first one's full blocks
    tokens = json.loads((tmp_path / "dump_tokens.json").read_text(encoding="utf-8"))
    assert [[len(ids) for ids in tokens[name]] for name in names] == [[3, 2]] * 4
    assert all(tokens[name] == tokens[names[0]] for name in names)


def test_bench_keeps_the_other_results_when_one_point_fails(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work.json").write_text(json.dumps([{"prompt": [1] * 40, "max_tokens": 2}]), encoding="utf-8")
    command = ["bench", "throughput", *words, f"workload={tmp_path / 'work.json'}", f"output={tmp_path / 'out.json'}"]
    assert main([*command, "cache.num_blocks=2,50"]) == 1
    captured = capsys.readouterr()
    assert "cache.num_blocks=50" in captured.out
    assert "failed: cache.num_blocks=2: the prompt has 40 tokens" in captured.err
    assert list(json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))) == ["cache.num_blocks=50"]
    assert main([*command, "cache=none,none"]) == 2
    assert "cache=none is given twice" in capsys.readouterr().err


@pytest.mark.parametrize("sweep", [("cache=none,hash",), ("trace.file={0}/a.jsonl,{0}/b.jsonl", "repetitions=2")])
def test_bench_refuses_a_trace_file_for_several_engines(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], sweep: tuple[str, ...]
) -> None:
    (tmp_path / "work.json").write_text(json.dumps([{"prompt": [1] * 4, "max_tokens": 2}]), encoding="utf-8")
    own = [f"workload={tmp_path / 'work.json'}", f"trace.file={tmp_path}/a.jsonl"]
    assert main(["bench", "throughput", *words, *own, *(word.format(tmp_path) for word in sweep)]) == 2
    assert "several engines of this command" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.jsonl"))


def test_bench_refuses_a_bad_point_before_any_runs(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work.json").write_text(json.dumps([{"prompt": [1], "max_tokens": 1}]), encoding="utf-8")
    command = ["bench", "throughput", *words, f"workload={tmp_path / 'work.json'}"]
    assert main([*command, "cache=none,hsh"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Did you mean 'hash'" in captured.err
    assert main([*command, "cache=none,hash", "keep_cache=true"]) == 2
    assert "keep_cache" in capsys.readouterr().err
