"""Reading several trace files at once, in processes of their own.

Each worker is a fresh interpreter that runs `serve` and talks pickles over pipes of its own. Not
`multiprocessing`: forking a process that already runs threads (pyarrow, progress bars) can deadlock, and
its spawn runs the caller's script again, which breaks every script without a main guard.
"""

from __future__ import annotations

import os
import pickle
import selectors
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, cast

from latencylab.model.integrity import InputError
from latencylab.model.trace import Trace

# A worker needs some 0.2 GB for 155 MB of JSON; this many stay below 1 GB together.
MAX_JOBS = 4
_CODE = (
    "import sys; _, pipe, *sys.path = sys.argv; from latencylab.traces import workers; workers.serve(pipe)"
)


def read_files(
    files: Sequence[Path], max_bytes: int | None, jobs: int | None
) -> Iterator[tuple[Path, tuple[Trace, ...]]]:
    """Each file with its traces, as they are done; `jobs` bounds the processes (MAX_JOBS where None).

    Raises InputError of the first file that cannot be read. No worker outlives the generator.
    """
    workers = min(len(files), MAX_JOBS if jobs is None else jobs, os.cpu_count() or 1)
    if workers > 1 and sys.executable:
        yield from _read_apart(files, max_bytes, workers)
        return
    for path in files:
        yield path, _read_file(path, max_bytes)


def _read_file(path: Path, max_bytes: int | None) -> tuple[Trace, ...]:
    from latencylab.traces.kineto import read_kineto

    return read_kineto(path) if max_bytes is None else read_kineto(path, max_bytes=max_bytes)


def _read_apart(
    files: Sequence[Path], max_bytes: int | None, workers: int
) -> Iterator[tuple[Path, tuple[Trace, ...]]]:
    queue = list(reversed(files))
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(workers):
            worker = stack.enter_context(_Worker())
            worker.ask(queue.pop(), max_bytes)
            selector.register(worker.answers, selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select():
                ready: _Worker = key.data
                path, traces = ready.path, ready.answer()
                if queue:
                    ready.ask(queue.pop(), max_bytes)
                else:
                    selector.unregister(ready.answers)
                yield path, traces


class _Worker:
    """A process that reads one file after another.

    It has a session of its own, so that Ctrl-C in a terminal reaches only us, who then end it; and it ends
    when its stdin closes, so that it does not outlive us even where we are killed.
    """

    def __init__(self) -> None:
        mine, its = os.pipe()  # not its stdout, which whatever it imports may print to
        self.answers = os.fdopen(mine, "rb")
        self.path = Path()
        try:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", _CODE, str(its), *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[its],
                start_new_session=True,
            )
        finally:
            os.close(its)
        self._questions = cast("IO[bytes]", self._process.stdin)

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            self._questions.close()
        self.answers.close()

    def ask(self, path: Path, max_bytes: int | None) -> None:
        self.path = path
        with suppress(BrokenPipeError):  # it died: `answer` says so
            pickle.dump((path, max_bytes), self._questions)
            self._questions.flush()

    def answer(self) -> tuple[Trace, ...]:
        try:
            answer: tuple[Trace, ...] | Exception = pickle.load(self.answers)  # noqa: S301
        except (EOFError, pickle.UnpicklingError):  # none, or cut short
            status = self._process.wait()
            reason = f"ended with status {status}, perhaps for want of memory"
            raise InputError(f"{self.path}: the process reading it {reason}") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def serve(pipe: str) -> None:
    """A worker's life: for each file asked for on stdin, its traces or an exception into the pipe."""
    answers = os.fdopen(int(pipe), "wb")
    questions: SimpleQueue[tuple[Path, int | None]] = SimpleQueue()
    Thread(target=_listen, args=(questions,), daemon=True).start()
    while True:
        path, max_bytes = questions.get()
        answer: tuple[Trace, ...] | Exception
        try:
            answer = _read_file(path, max_bytes)
        except Exception as error:  # noqa: BLE001
            error.add_note(traceback.format_exc())  # the traceback itself does not travel
            answer = error
        pickle.dump(answer, answers, protocol=5)
        answers.flush()


def _listen(questions: SimpleQueue[tuple[Path, int | None]]) -> None:
    """Take questions until stdin closes: whoever asked is gone, so that the file in hand is in vain, too."""
    try:
        while True:
            questions.put(pickle.load(sys.stdin.buffer))  # noqa: S301
    finally:
        os._exit(1)
