"""A web server in this process with a tree like that of dumps.wikimedia.org, and injected faults."""

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT = "/other/mediawiki_content_current"
# Fault of a request. "" serves it, and _Handler._misbehave has the others.
Plan = Callable[["Request"], str]


@dataclass(frozen=True)
class Request:
    """A request that the server got."""

    path: str
    headers: dict[str, str]
    number: int
    """How many requests for this path came before."""

    @property
    def is_file(self) -> bool:
        """Whether the request is for the body of a dump file."""
        return self.path.endswith(".bz2")


@dataclass
class DumpServer:
    """``files`` maps paths to bytes. Folders are listed as nginx does."""

    files: dict[str, bytes] = field(default_factory=dict)
    plan: Plan = lambda _: ""
    requests: list[Request] = field(default_factory=list)
    sent: int = 0
    """Bytes of dump files that were sent."""
    most_at_once: int = 0
    _at_once: int = 0
    _counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> "DumpServer":
        handler = type("Handler", (_Handler,), {"dumps": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add_export(self, wiki: str, date: str, *parts: bytes, complete: bool = True) -> None:
        """A Content File Export, without its checksums while it is being written."""
        folder = f"{CONTENT}/{wiki}/{date}/xml/bzip2"
        names = [f"{wiki}-{date}-p{1000 * n + 1}p{1000 * (n + 1)}.xml.bz2" for n in range(len(parts))]
        self.files |= {f"{folder}/{name}": data for name, data in zip(names, parts, strict=True)}
        if complete:
            sums = (
                f"{hashlib.sha256(data).hexdigest()}  {name}\n"
                for name, data in zip(names, parts, strict=True)
            )
            self.files[f"{folder}/SHA256SUMS"] = "".join(sums).encode()
            self.files[f"{folder}/_SUCCESS"] = b""

    def add_articles(
        self, wiki: str, date: str, data: bytes, status: str = "done", index: bytes = b"index"
    ) -> None:
        """A pages-articles dump with its index."""
        folder, stem = f"/{wiki}/{date}", f"{wiki}-{date}-pages-articles-multistream"
        files = {f"{stem}.xml.bz2": data, f"{stem}-index.txt.bz2": index}
        about = {
            name: {
                "size": len(content),
                "url": f"{folder}/{name}",
                "md5": hashlib.md5(content).hexdigest(),
                "sha1": hashlib.sha1(content).hexdigest(),
            }
            for name, content in files.items()
        }
        jobs = {"articlesmultistreamdump": {"status": status, "files": about}}
        self.files |= {f"{folder}/{name}": content for name, content in files.items()}
        self.files[f"{folder}/dumpstatus.json"] = json.dumps({"version": "0.8", "jobs": jobs}).encode()

    def fetched(self) -> list[str]:
        """Names of the dump files whose bytes were requested, sorted."""
        return sorted({r.path.rpartition("/")[2] for r in self.requests if r.is_file})

    def arrived(self, path: str, headers: dict[str, str]) -> Request:
        """Counts a request."""
        with self._lock:
            request = Request(path, headers, self._counts[path])
            self._counts[path] += 1
            self.requests.append(request)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            return request

    def ended(self) -> None:
        """Counts the end of a request."""
        with self._lock:
            self._at_once -= 1

    def listing(self, folder: str) -> bytes | None:
        """The page of a folder, or None for a missing one."""
        inside = {path.removeprefix(folder) for path in self.files if path.startswith(folder)}
        names = sorted({re.sub("/.*", "/", name) for name in inside})
        lines = [f'<a href="{name}">{name}</a>      01-Sep-2026 09:13       -' for name in names]
        text = "\n".join(["<html><body><h1>Index</h1><hr><pre>", '<a href="../">../</a>', *lines, "</pre>"])
        return text.encode() if names else None


class _Handler(BaseHTTPRequestHandler):
    dumps: DumpServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Logs nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        dumps = self.dumps
        path = self.path.partition("?")[0]
        if self.command == "HEAD":
            data = dumps.files.get(path)
            return self._send(404 if data is None else 200, b"", length=len(data or b""))
        request = dumps.arrived(path, dict(self.headers))
        try:
            fault = dumps.plan(request)
            data = dumps.listing(path) if path.endswith("/") else dumps.files.get(path)
            if data is None:
                self._send(404, b"")
            elif not fault:
                self._serve(data)
            else:
                self._misbehave(fault, data)
        finally:
            dumps.ended()

    def _misbehave(self, fault: str, data: bytes) -> None:
        if fault.isdecimal():
            return self._send(int(fault), b"", {"Retry-After": "0"})
        if fault.startswith("wait"):
            return self._send(429, b"", {"Retry-After": fault.removeprefix("wait")})
        if fault == "cut":
            self._serve(data, cut=True)
            self.close_connection = True
            return None
        if fault == "wrong-range":
            span = f"bytes 1-{len(data) - 1}/{len(data)}"
            return self._send(206, data[1:], {"Content-Range": span, **_version(data)})
        if fault == "garbled":
            return self._send(200, b"x" * len(data), _version(data))
        raise ValueError(fault)

    def _serve(self, data: bytes, cut: bool = False) -> None:
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        same = self.headers.get("If-Range") in (None, _version(data)["ETag"])
        start = int(match[1]) if match and same else 0
        if match and same and start >= len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        body, headers = data[start:], _version(data)
        if match and same:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        sent = body[: (len(body) + 1) // 2] if cut else body
        return self._send(206 if match and same else 200, sent, headers, len(body))

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
            if self.path.endswith(".bz2"):
                self.dumps.sent += len(body)


def _version(data: bytes) -> dict[str, str]:
    return {"ETag": f'"{hashlib.md5(data).hexdigest()}"', "Accept-Ranges": "bytes"}
