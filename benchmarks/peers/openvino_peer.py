"""OpenVINO GenAI as one of the engines of `cpu_peers.py`; reads the GGUF file.

Its defaults are an 8-bit KV cache and activations quantized on the fly; `extra` holding `exact` sets a bf16 KV cache
and leaves activations as they are.
"""

from __future__ import annotations

from importlib.metadata import version

from peer_worker import Item, Peer, Settings, serve

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
        self._pipe = openvino_genai.ContinuousBatchingPipeline(settings.gguf, config, "CPU", EXACT if is_exact else {})

    def run(self, items: list[Item]) -> list[list[int]]:
        import numpy as np
        import openvino  # type: ignore[import-not-found, unused-ignore]

        params = []
        for item in items:
            config = self._genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = item["max_tokens"], True, False
            params.append(config)
        prompts = [openvino.Tensor(np.array([item["prompt"]], dtype=np.int64)) for item in items]
        return [list(output.m_generation_ids[0]) for output in self._pipe.generate(prompts, params)]

    def reset(self) -> bool:
        return not self._caches_prefixes


if __name__ == "__main__":
    serve(Openvino)
