"""llama.cpp's server as one of the engines of `cpu_peers.py`; reads the GGUF file.

`extra` holds its binary, then settings of its own. It has a slot for each request that may run at once; a context of
`max_model_len` tokens is given to every slot.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from peer_worker import Item, Peer, Settings, serve

START_TIMEOUT_S = 120.0


class LlamaServer(Peer):
    """Its own `/completion` endpoint, which takes token ids and returns them."""

    name = "llama-server"

    def __init__(self, settings: Settings) -> None:
        binary, *extra = settings.extra
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
        self.version = (said.stdout + said.stderr).strip().splitlines()[0]
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            port = chosen.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._num_slots = settings.max_num_seqs
        self._caches_prefixes = settings.prefix_caching
        context = settings.max_model_len * settings.max_num_seqs
        command = [binary, "-m", settings.gguf, "--port", str(port), "-np", str(self._num_slots), "-c", str(context)]
        self._process = subprocess.Popen([*command, *extra], stdout=sys.stderr)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise RuntimeError(f"llama-server ended with code {self._process.returncode} before it was ready")
            try:
                urllib.request.urlopen(f"{self._url}/health", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise RuntimeError(f"llama-server was not ready within {START_TIMEOUT_S:g} s")

    def run(self, items: list[Item]) -> list[list[int]]:
        with ThreadPoolExecutor(len(items)) as pool:
            return list(pool.map(self._run_one, items))

    def _run_one(self, item: Item) -> list[int]:
        body: dict[str, Any] = {"prompt": item["prompt"], "n_predict": item["max_tokens"], "temperature": 0.0}
        body |= {"ignore_eos": True, "return_tokens": True, "cache_prompt": self._caches_prefixes}
        request = urllib.request.Request(
            f"{self._url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=3600) as answer:
            return [int(token) for token in json.load(answer)["tokens"]]

    def reset(self) -> bool:
        return not self._caches_prefixes


if __name__ == "__main__":
    serve(LlamaServer)
