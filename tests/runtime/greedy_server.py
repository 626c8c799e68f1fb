"""A server of whole answers, in a thread: what it says of itself is given, and what it answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any]], Any]
INFO = {"version": "0.5.23", "tp_size": 1, "max_running_requests": 1, "api_key": "geheim"}


@contextmanager
def serving(reply: Reply, info: dict[str, Any] | None = None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server's URL, and the bodies of the requests that it was sent."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(200, INFO if info is None else info)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            if self.path != "/generate":
                self._say(200, {})
                return
            asked.append(body)
            said = reply(body)
            self._say(500 if isinstance(said, str) else 200, said)

        def _say(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
