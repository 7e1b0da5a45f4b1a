"""Structured logging: a fixed event name and keys, rendered for a console or as JSON lines.

Sentences are never assembled from values; an operator greps for event names and keys.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import TextIO

    from structlog.typing import FilteringBoundLogger


@contextmanager
def _without_rich() -> Iterator[None]:
    """Let structlog take its plain tracebacks: it would load rich, 5 MiB, for coloured ones that nobody sees here."""
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = cast("ModuleType", None)  # import statements take this for "not installed"
    try:
        yield
    finally:
        del sys.modules["rich"]


with _without_rich():
    import structlog

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(form: str, level: str, stream: TextIO | None = None) -> FilteringBoundLogger:
    """Set up logging to ``stream`` (standard error by default) and return the agent's logger.

    Args:
        form: ``console``, ``json``, or ``auto`` for console on a terminal and JSON elsewhere.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        stream: where lines go.
    """
    out = stream if stream is not None else sys.stderr
    console = form == "console" or (form == "auto" and out.isatty())
    renderer: structlog.typing.Processor
    if console:
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    else:
        renderer = structlog.processors.JSONRenderer(ensure_ascii=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if console else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger
