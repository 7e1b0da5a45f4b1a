"""Tasks for the service manager: the watchdog and reloads of the configuration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.daemon.context import DaemonContext, Reloaded, ReloadEffect
from nodeagent.daemon.health import status_line
from nodeagent.daemon.reload_preview import log_effect, preview_effect, until_stopped
from nodeagent.errors import ConfigError
from nodeagent.guarded_call import GuardedCall, HangingCallError
from nodeagent.loops.passes import wait_for_any
from nodeagent.loops.reload_grace import grace_needed_s
from nodeagent.record import replace
from nodeagent.settings.loading import checked

if TYPE_CHECKING:
    import asyncio

    from nodeagent.host.systemd import Notifier
    from nodeagent.settings.settings import Settings

    Preview = Callable[[Settings, Settings, DaemonContext], Awaitable[ReloadEffect]]
    """Returns the effect of the first settings when they replace the second settings; see ``preview_effect``."""

_CHECK: Final[GuardedCall[Settings]] = GuardedCall()
_CHECK_WITHIN_S: Final = 30.0
MAX_WAIT_S = 3000.0


class WatchdogTask:
    """Feeds the watchdog of the service manager while every task makes progress."""

    def __init__(self, context: DaemonContext, notifier: Notifier) -> None:
        self._context = context
        self._notifier = notifier
        self._stuck: tuple[str, ...] = ()

    async def run(self, stop: asyncio.Event) -> None:
        """Feed the watchdog until ``stop`` is set; return immediately without a configured watchdog."""
        every_s = self._notifier.watchdog_s
        if every_s is None:
            return
        while not stop.is_set():
            self.feed()
            await wait_for_any(every_s / 3, stop)

    def feed(self) -> None:
        """Feed the watchdog if every task makes progress; log the stuck tasks once per change."""
        stuck = self._context.loop_statuses.stuck()
        if not stuck:
            self._notifier.alive()
        elif stuck != self._stuck:
            self._context.logger.error("tasks_stuck", tasks=list(stuck))
        self._stuck = stuck


class ReloadTask:
    """Reloads the configuration on request; an invalid configuration is rejected."""

    def __init__(self, context: DaemonContext, notifier: Notifier, preview: Preview = preview_effect) -> None:
        self._context = context
        self._notifier = notifier
        self._preview = preview

    async def run(self, stop: asyncio.Event) -> None:
        """Reload on each request until ``stop`` is set."""
        requested = self._context.reload
        while not stop.is_set():
            if not await wait_for_any(MAX_WAIT_S, stop, requested):
                continue
            if stop.is_set():
                return
            requested.clear()
            callers, self._context.awaiting_reload = self._context.awaiting_reload, []
            self._notifier.reloading()
            try:
                reloaded = await self._reload(stop)
            except ConfigError as error:
                _answer(callers, error)
                self._notifier.ready(status_line(self._context))
            else:
                _answer(callers, reloaded)

    async def _reload(self, stop: asyncio.Event) -> Reloaded:
        context, before = self._context, self._context.newest
        try:
            after = await read_again(before)
        except ConfigError as error:
            context.config_problem = str(error)
            hint = "the previous configuration remains in force"
            context.logger.error("config_rejected", error=str(error), hint=hint)  # noqa: TRY400 - no bug
            raise
        context.config_problem = ""
        changes = differences(dict(before.values), dict(after.values))
        context.logger.info("config_reloaded", changes=changes)
        if not changes and not before.invalid_because:
            self._notifier.ready(status_line(context))
            return Reloaded((), before.dry_run, None, context.grace.left_s(), context.grace.until())
        waited, earlier = context.grace.pending, _effective(context)
        context.announced.clear()  # no loop starts under the new settings before the effect is logged
        try:
            context.swap(after)
            self._notifier.ready(status_line(context))  # first: the service manager does not wait for the runtime
            effect = await until_stopped(self._preview(after, earlier, context), stop)
            effect = effect or ReloadEffect(after.dry_run, problem="agent is stopping")
            self._announce(effect, waited=waited)
        finally:
            context.announced.set()
        return Reloaded(tuple(changes), after.dry_run, effect, context.grace.left_s(), context.grace.until())

    def _announce(self, effect: ReloadEffect, *, waited: bool) -> None:
        log_effect(effect, self._context.logger)
        if self._context.grace.pending:
            announce_grace(self._context, effect)
        elif waited and effect.dry_run:
            self._context.logger.info("reload_grace_cancelled", dry_run=True)
        elif waited:
            self._context.logger.warning("reload_grace_ended", dry_run=False)


def announce_grace(context: DaemonContext, effect: ReloadEffect) -> None:
    """Start the reload grace period, and log the period with the effect of the new settings."""
    context.grace.announce()
    until = context.grace.until()
    period_s = context.grace.period_s
    context.logger.warning(
        "reload_grace_started",
        because=context.grace.reason,
        seconds=period_s,
        until=f"{period_s:g} s after the pause" if until is None else until.isoformat(timespec="seconds"),
        effect=effect.summary,
        items=len(effect.removals),
        frees_bytes=effect.frees_bytes,
        dry_run=True,
    )


async def preview_reload(context: DaemonContext) -> Reloaded:
    """Return the outcome of a hypothetical reload; the settings in force and the loops are unchanged.

    Raises:
        ConfigError: the configuration is invalid, or its check failed.
    """
    before = context.newest
    after = await read_again(before)
    changes = differences(dict(before.values), dict(after.values))
    if not changes:
        return Reloaded((), before.dry_run, None, context.grace.left_s(), context.grace.until(), applied=False)
    effect = await preview_effect(after, _effective(context), context)
    wait_s = grace_needed_s(before, after, pending=context.grace.pending)
    return Reloaded(tuple(changes), after.dry_run, effect, wait_s, applied=False)


def _effective(context: DaemonContext) -> Settings:
    """Return the newest settings with the mode of the passes: dry run during the reload grace period."""
    return replace(context.newest, dry_run=True) if context.grace.pending else context.newest


def _answer(callers: Iterable[asyncio.Future[Reloaded]], outcome: Reloaded | ConfigError) -> None:
    """Deliver the outcome of a reload to the callers that requested it."""
    for each in callers:
        if each.done():
            continue
        if isinstance(outcome, ConfigError):
            each.set_exception(outcome)
        else:
            each.set_result(outcome)


async def read_again(settings: Settings) -> Settings:
    """Return the current settings of the configuration sources; the files are read in a guarded thread.

    Raises:
        ConfigError: the settings are invalid, or a file is not readable in time.
    """
    try:
        return await _CHECK.run(partial(checked, settings.origin), within_s=_CHECK_WITHIN_S)
    except HangingCallError as error:
        raise ConfigError(f"cannot check the configuration: {error}") from error


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the changed settings, one line each."""
    return [
        f"{key}: {before.get(key, '(none)')} -> {after.get(key, '(none)')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
