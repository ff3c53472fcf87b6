"""OpenVINO GenAI as one of the engines of `cpu_peers.py`; reads the GGUF file.

Its defaults are an 8-bit KV cache and activations quantized on the fly; `extra` holding `exact` sets a bf16 KV cache
and leaves activations as they are, `model=FOLDER` reads what it has made of the file before (`enable_save_ov_model`).
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from peer_worker import Item, Peer, Score, Settings, serve

EXACT = {"KV_CACHE_PRECISION": "bf16", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


class Openvino(Peer):
    """Its continuous batching pipeline."""

    def __init__(self, settings: Settings) -> None:
        import openvino_genai  # type: ignore[import-not-found, unused-ignore]

        is_exact = "exact" in settings.extra
        self.name = "openvino-genai" + ("-exact" if is_exact else "")
        self.version = version("openvino-genai")
        config = openvino_genai.SchedulerConfig()
        config.cache_size = 3
        config.max_num_batched_tokens = settings.max_num_batched_tokens
        config.max_num_seqs = settings.max_num_seqs
        config.enable_prefix_caching = settings.prefix_caching
        self._genai = openvino_genai
        self._caches_prefixes = settings.prefix_caching
        self._every = settings.score_every
        kept = [word.removeprefix("model=") for word in settings.extra if word.startswith("model=")]
        model, options = (*kept, settings.gguf)[0], EXACT if is_exact else {}
        self._pipe = openvino_genai.ContinuousBatchingPipeline(model, config, "CPU", options)

    def run(self, items: list[Item]) -> list[list[int]]:
        prompts = [self._tensor(item["prompt"]) for item in items]
        params = [self._greedy(item["max_tokens"]) for item in items]
        return [list(output.m_generation_ids[0]) for output in self._pipe.generate(prompts, params)]

    def score(self, windows: list[list[int]]) -> list[list[Score]]:
        return [self._score_one(ids) for ids in windows]

    def _score_one(self, ids: list[int]) -> list[Score]:
        """An echo has the log-probabilities; likeliest tokens are asked for, one prefix after the other."""
        echo = self._greedy(1)
        echo.echo, echo.logprobs = True, 1
        handle = self._pipe.add_request(0, self._tensor(ids), echo)
        while self._pipe.has_non_finished_requests():
            self._pipe.step()
        logprobs = handle.read_all()[0].generated_log_probs
        places = range(self._every, len(ids), self._every)
        items: list[Item] = [{"prompt": ids[:at], "max_tokens": 1} for at in places]
        likeliest = {at: made[0] for at, made in zip(places, self.run(items))}
        return [Score(at, likeliest.get(at), float(logprobs[at])) for at in range(1, len(ids))]

    def _greedy(self, max_tokens: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = max_tokens, True, False
        return config

    @staticmethod
    def _tensor(ids: list[int]) -> Any:
        import numpy as np
        import openvino  # type: ignore[import-not-found, unused-ignore]

        return openvino.Tensor(np.array([ids], dtype=np.int64))

    def reset(self) -> bool:
        return not self._caches_prefixes


if __name__ == "__main__":
    serve(Openvino)
