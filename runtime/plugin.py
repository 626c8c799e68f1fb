"""The plugin of SGLang: the entry point `sglang.srt.plugins`, called once in every process of the engine.

It hooks only the constructor and the loop of the scheduler. Once a scheduler is being made, its arguments say
how it decodes, and the hooks which that needs are applied: after the modules of SGLang can be imported, and
before the model is loaded and its graphs are captured. SGLang only logs what a plugin or a hook raises, so in
strict mode the process ends by SystemExit instead, which nothing there catches.
"""

from __future__ import annotations

import logging
import os
import pkgutil
import sys
from typing import Any

from latencylab.model.integrity import InputError
from latencylab.runtime.settings import Settings

logger = logging.getLogger(__name__)

SCHEDULER_MODULE = "sglang.srt.managers.scheduler"
INIT = f"{SCHEDULER_MODULE}.Scheduler.__init__"
LOOP = f"{SCHEDULER_MODULE}.Scheduler.run_event_loop"


def register() -> None:
    """Hook the scheduler where LATENCYLAB_ variables ask for anything; otherwise do nothing at all.

    In the launcher and the detokenizer the hooks never run, if they are registered there in the first place.
    Raises SystemExit where the variables are nonsense, and in strict mode where the scheduler is not the one
    that is known.
    """
    try:
        settings = Settings.from_env(os.environ)
    except InputError as error:
        raise SystemExit(f"latencylab: {error}") from None
    if not settings.wanted or SCHEDULER_MODULE not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    try:
        from latencylab.runtime.session import Session

        if settings.clock:
            import pyarrow.parquet  # noqa: F401  # better now than when the clock is to be written
    except ImportError as error:
        if settings.strict:
            raise SystemExit(f"latencylab: refused to start: {error}") from None
        raise
    session = Session(settings)
    for path, hook in ((INIT, session.make_scheduler), (LOOP, session.run_event_loop)):
        if settings.strict and not _exists(path):
            raise SystemExit(f"latencylab: {path} does not exist in this SGLang")
        HookRegistry.register(path, hook, HookType.AROUND)
    logger.info("latencylab: registered")


def _exists(path: str) -> bool:
    owner, _, name = path.rpartition(".")
    try:
        found: Any = pkgutil.resolve_name(owner)
    except (ImportError, AttributeError, ValueError):
        return False
    return hasattr(found, name)
