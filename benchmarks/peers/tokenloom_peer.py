"""tokenloom as one of the engines of `cpu_peers.py`; `extra` are its settings."""

from __future__ import annotations

from importlib.metadata import version

from peer_worker import Item, Peer, Score, Settings, serve

from tokenloom import SamplingParams
from tokenloom.collector_pause import collector_paused
from tokenloom.openmp import choose_spin


class Tokenloom(Peer):
    """The offline `LLM`."""

    name = "tokenloom"
    version = version("tokenloom")

    def __init__(self, settings: Settings) -> None:
        overrides = [
            f"scheduler.max_num_seqs={settings.max_num_seqs}",
            f"scheduler.max_num_batched_tokens={settings.max_num_batched_tokens}",
            f"model.max_model_len={settings.max_model_len}",
            f"cache={'hash' if settings.prefix_caching else 'none'}",
        ]
        # A variant may be another form of the model, such as quantized weights.
        if not any(word.startswith("model=") for word in settings.extra):
            overrides.append(f"model={settings.gguf}")
        choose_spin()
        # Imported here: torch comes with it, and must find that choice. As the command line does it.
        with collector_paused():
            from tokenloom import LLM

        self._llm = LLM(overrides=[*overrides, *settings.extra])

    def run(self, items: list[Item]) -> list[list[int]]:
        params = [SamplingParams(temperature=0.0, max_tokens=item["max_tokens"], ignore_eos=True) for item in items]
        outputs = self._llm.generate([item["prompt"] for item in items], params)
        return [output.outputs[0].token_ids for output in outputs]

    def score(self, windows: list[list[int]]) -> list[list[Score]]:
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=1)
        scores = []
        for output in self._llm.generate(windows, params):
            assert output.prompt_logprobs is not None, "prompt_logprobs was asked for"
            told = [(at, place) for at, place in enumerate(output.prompt_logprobs) if place is not None]
            scores.append([Score(at, place.top[0][0], place.logprob) for at, place in told])
        return scores

    def reset(self) -> bool:
        self._llm.engine.reset_prefix_cache()
        return True


if __name__ == "__main__":
    serve(Tokenloom)
