"""An HTTP proxy in front of a real server that breaks chosen requests: status codes, resets, delays.

The proxy calls ``plan`` for each request with (number, method, path), which returns an action:

    "pass"         forwarded
    "503"          answered with 503 SlowDown, not forwarded (any other three digits work, too)
    "403 Code"     answered with the code instead of the usual one
    "reset"        the connection is reset before anything is forwarded
    "lost"         forwarded, then the connection is reset, so that only the answer is lost
    "cut"          forwarded, then reset in the middle of the answer's body
    "delay 0.5"    forwarded after half a second
"""

import http.client
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Plan = Callable[[int, str, str], str]

_ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>injected</Message></Error>"
_CODES = {
    "400": b"ExpiredToken", "403": b"AccessDenied", "429": b"TooManyRequests", "500": b"InternalError",
    "501": b"NotImplemented", "503": b"SlowDown",
}  # fmt: skip


class FaultProxy:
    """A proxy on a loopback port. Use it in a ``with`` block."""

    def __init__(self, upstream_port: int, plan: Plan) -> None:
        self.plan = plan
        self.upstream_port = upstream_port
        self.done: Counter[str] = Counter()
        """Action -> the number of times it happened."""
        self.requests: list[tuple[str, str]] = []
        self.sent = 0
        """Bytes of bodies sent to clients."""
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def decide(self, method: str, path: str) -> str:
        """The action for the next request."""
        with self._lock:
            number = len(self.requests)
            self.requests.append((method, path))
            action = self.plan(number, method, path)
            self.done[action] += 1
        return action

    def __enter__(self) -> "FaultProxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultProxy
    protocol_version = "HTTP/1.1"
    timeout = 600

    def log_message(self, *_: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError, ValueError):  # the other end has closed
            self.close_connection = True

    def _serve(self) -> None:
        action = self.proxy.decide(self.command, self.path)
        body = self._body()
        status, _, code = action.partition(" ")
        if status.isdigit():
            self._answer(int(status), _ERROR % (code.encode() or _CODES.get(status, b"InternalError")))
        elif action == "reset":
            self._reset()
        else:
            if action.startswith("delay"):
                threading.Event().wait(float(action.split()[1]))
            self._forward(body, action)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _forward(self, body: bytes, action: str) -> None:
        upstream = http.client.HTTPConnection("127.0.0.1", self.proxy.upstream_port, timeout=600)
        try:
            skipped = ("expect", "connection", "transfer-encoding", "content-length")
            headers = {k: v for k, v in self.headers.items() if k.lower() not in skipped}
            headers["Content-Length"] = str(len(body))
            upstream.request(self.command, self.path, body=body, headers=headers)
            answer = upstream.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self._reset()
            return
        finally:
            upstream.close()
        if action == "lost":
            self._reset()
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        if answer.getheader("Content-Length") is None and self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if action == "cut" and len(content) > 1:
            self.wfile.write(content[: len(content) // 2])
            self._reset()
            return
        self._send_all(content)

    def _send_all(self, content: bytes) -> None:
        for start in range(0, len(content), 1 << 16):
            piece = content[start : start + (1 << 16)]
            self.proxy.sent += len(piece)
            self.wfile.write(piece)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _reset(self) -> None:
        self.wfile.flush()
        # With a linger of zero seconds, close sends RST instead of FIN.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def script(*actions: str) -> Plan:
    """A plan that plays the actions in order and passes everything after them."""
    return lambda number, _method, _path: actions[number] if number < len(actions) else "pass"
