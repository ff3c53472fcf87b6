"""A Hugging Face hub on localhost, as far as the library asks it: repositories, revisions, files with ranges.

`with FakeHub() as hub: commit = hub.add("org/name", {"config.json": b"{}"})`; `hub.url` is the endpoint. What a client
asked for is in `hub.requests`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["FakeHub"]

_LARGE = (".safetensors", ".bin", ".gguf", ".onnx", ".pth", ".h5")
_API = re.compile(r"/api/models/(?P<repo>[^/]+(?:/[^/]+)?)(?:/(?P<what>revision|tree)/(?P<revision>[^?]+))?")
_FILE = re.compile(r"/(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repository:
    """Files of each commit; what branches and tags point to; who may read it."""

    commits: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)
    token: str | None = None
    is_gated: bool = False


class FakeHub:
    """A server in a thread.

    Attributes:
        url: for HF_ENDPOINT.
        requests: "METHOD path" of every request, in order.
        num_failures: that many file requests (GET) break off half way.
        status: answers every request with this status, if set.
        corrupt: names of files of which another content is sent than the digest promises.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.num_failures = 0
        self.status: int | None = None
        self.corrupt: set[str] = set()
        hub = self

        class Handler(_Handler):
            fake = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(
        self,
        repo: str,
        files: Mapping[str, bytes],
        revision: str = "main",
        *,
        token: str | None = None,
        is_gated: bool = False,
    ) -> str:
        """Adds a commit and lets `revision` point to it; returns the commit."""
        repository = self.repositories.setdefault(repo, Repository())
        repository.token, repository.is_gated = token, is_gated
        parts = b"".join(name.encode() + content for name, content in sorted(files.items()))
        commit = hashlib.sha1(repo.encode() + parts).hexdigest()
        repository.commits[commit] = dict(files)
        repository.revisions[revision] = commit
        return commit

    def downloads(self) -> list[str]:
        """The files whose content was sent, sorted."""
        found = (_FILE.fullmatch(line.removeprefix("GET ")) for line in self.requests if line.startswith("GET "))
        return sorted({match["file"] for match in found if match is not None})

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, *arguments: Any) -> None:
        """Says nothing."""

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.fake.requests.append(f"{self.command} {path}")
        if self.fake.status is not None:
            self._send(self.fake.status, b"", {}, with_body)
            return
        api, file = _API.fullmatch(path), _FILE.fullmatch(path)
        match = api or file
        repository = self.fake.repositories.get(match["repo"]) if match is not None else None
        if match is None or repository is None:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"}, with_body)
            return
        if repository.token is not None and self.headers.get("Authorization") != f"Bearer {repository.token}":
            code = "GatedRepo" if repository.is_gated else "RepoNotFound"
            self._send(403 if repository.is_gated else 401, b"", {"X-Error-Code": code}, with_body)
            return
        commit = repository.revisions.get(match["revision"] or "main", match["revision"])
        files = repository.commits.get(commit)
        if files is None:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"}, with_body)
        elif api is not None:
            listing = _tree(files) if api["what"] == "tree" else _info(api["repo"], commit, files)
            self._send(200, json.dumps(listing).encode(), {"Content-Type": "application/json"}, with_body)
        elif match["file"] not in files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, with_body)
        else:
            self._send_file(match["file"], files[match["file"]], commit, with_body)

    def _send_file(self, name: str, content: bytes, commit: str, with_body: bool) -> None:
        headers = {"ETag": f'"{_digest(name, content)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if name in self.fake.corrupt:
            content = content[:-1] + bytes([content[-1] ^ 1])
        start = 0
        requested = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if requested is not None:
            start = int(requested[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        body = content[start:]
        if with_body and self.fake.num_failures > 0:
            self.fake.num_failures -= 1
            self._send(200 if requested is None else 206, body, headers, True, num_sent=len(body) // 2)
            self.close_connection = True
            return
        self._send(200 if requested is None else 206, body, headers, with_body)

    def _send(
        self, status: int, body: bytes, headers: Mapping[str, str], with_body: bool, num_sent: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body[:num_sent])


def _digest(name: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if name.endswith(_LARGE) else git_sha1(content)


def _info(repo: str, commit: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    return {"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in files]}


def _tree(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    entries = []
    for name, content in files.items():
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": git_sha1(content)}
        if name.endswith(_LARGE):
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": digest, "sha256": digest, "size": len(content), "pointerSize": 100}
        entries.append(entry)
    return entries
