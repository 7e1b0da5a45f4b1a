"""What the daemon owes its service manager: readiness, a fed watchdog, and reloads."""

from __future__ import annotations

import asyncio
import pickle  # to and from our own child
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nodeagent.daemon.loops import wait_for_any
from nodeagent.daemon.reload_effect import Effect, Reloaded
from nodeagent.daemon.reload_grace import grace_needed_s
from nodeagent.daemon.reload_preview import log_effect, preview_effect, until_stopped
from nodeagent.errors import ConfigError
from nodeagent.host.processes import start_python

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from nodeagent.config.settings import Settings
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.host.notify import Notifier

    Preview = Callable[[Settings, Settings, DaemonContext], Awaitable[Effect]]
    """Returns the effect of the first settings in place of the second; see ``preview_effect``."""

_CHECK_WITHIN_S: Final = 30.0
_LONG_S: Final = 3000.0


class WatchdogTask:
    """Feeds the service manager's watchdog for as long as every duty makes progress."""

    def __init__(self, context: DaemonContext, notifier: Notifier) -> None:
        self._context = context
        self._notifier = notifier
        self._told: tuple[str, ...] = ()

    async def run(self, stop: asyncio.Event) -> None:
        """Feed until told to stop."""
        every_s = self._notifier.watchdog_s
        if every_s is None:
            return
        while not stop.is_set():
            self.look()
            await wait_for_any(every_s / 3, stop)

    def look(self) -> None:
        """Feed the watchdog if every duty makes progress; tell which does not, once."""
        stuck = self._context.loop_statuses.stuck()
        if not stuck:
            self._notifier.alive()
        elif stuck != self._told:
            self._context.logger.error("tasks_stuck", duties=list(stuck))
        self._told = stuck


class ReloadTask:
    """Reads the configuration again when asked to, and puts it in force if it is good."""

    def __init__(self, context: DaemonContext, notifier: Notifier, preview: Preview = preview_effect) -> None:
        self._context = context
        self._notifier = notifier
        self._preview = preview

    async def run(self, stop: asyncio.Event) -> None:
        """Reload whenever asked to, until told to stop."""
        asked = self._context.reload
        while not stop.is_set():
            if not await wait_for_any(_LONG_S, stop, asked):
                continue
            if stop.is_set():
                return
            asked.clear()
            waiting, self._context.awaiting_reload = self._context.awaiting_reload, []
            self._notifier.reloading()
            try:
                reloaded = await self._reload(stop)
            except ConfigError as error:
                _answer(waiting, error)
                self._notifier.ready()
            else:
                _answer(waiting, reloaded)

    async def _reload(self, stop: asyncio.Event) -> Reloaded:
        context, before = self._context, self._context.newest
        try:
            made = await read_again(before)
        except ConfigError as error:
            context.config_problem = str(error)
            context.logger.error("config_rejected", error=str(error), hint="the running one stays in force")  # noqa: TRY400 - no bug
            raise
        context.config_problem = ""
        changes = differences(dict(before.values), dict(made.values))
        context.logger.info("config_reloaded", changes=changes)
        if not changes:
            self._notifier.ready()
            return Reloaded((), before.dry_run, None, context.grace.left_s(), context.grace.until())
        waited, earlier = context.grace.pending, _acted_on(context)
        context.announced.clear()  # until then no loop starts under the new settings
        try:
            context.swap(made)
            self._notifier.ready()  # the service manager does not wait for the runtime
            effect = await until_stopped(self._preview(made, earlier, context), stop)
            effect = effect or Effect(made.dry_run, problem="the agent is stopping")
            self._announce(effect, waited=waited)
        finally:
            context.announced.set()
        return Reloaded(tuple(changes), made.dry_run, effect, context.grace.left_s(), context.grace.until())

    def _announce(self, effect: Effect, *, waited: bool) -> None:
        log_effect(effect, self._context.logger)
        if self._context.grace.pending:
            announce_grace(self._context, effect)
        elif waited and effect.dry_run:
            self._context.logger.info("reload_grace_cancelled", dry_run=True)
        elif waited:
            self._context.logger.warning("reload_grace_ended", dry_run=False)


def announce_grace(context: DaemonContext, effect: Effect) -> None:
    """Start the reload grace period now that its effect is known, and log both."""
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


async def preview_reload(context: DaemonContext, preview: Preview = preview_effect) -> Reloaded:
    """Return the outcome of a reload without one: nothing is put in force, and no loop is disturbed.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    before = context.newest
    made = await read_again(before)
    changes = differences(dict(before.values), dict(made.values))
    if not changes:
        return Reloaded((), before.dry_run, None, context.grace.left_s(), context.grace.until(), applied=False)
    effect = await preview(made, _acted_on(context), context)
    wait_s = grace_needed_s(before, made, pending=context.grace.pending)
    return Reloaded(tuple(changes), made.dry_run, effect, wait_s, applied=False)


def _acted_on(context: DaemonContext) -> Settings:
    """Return the newest settings as passes acted on them: a dry run while they wait for the reload grace period."""
    return replace(context.newest, dry_run=True) if context.grace.pending else context.newest


def _answer(waiting: Iterable[asyncio.Future[Reloaded]], outcome: Reloaded | ConfigError) -> None:
    """Tell those who waited for a reload when it began what became of it."""
    for each in waiting:
        if each.done():
            continue
        if isinstance(outcome, ConfigError):
            each.set_exception(outcome)
        else:
            each.set_result(outcome)


async def read_again(settings: Settings) -> Settings:
    """Return the settings as their origin has them now, checked by a process of its own.

    Raises:
        ConfigError: they cannot be used, or could not be checked.
    """
    try:
        child = await start_python("-m", "nodeagent.config.handoff")
    except OSError as error:
        raise ConfigError(f"the configuration could not be checked: {error}") from error
    try:
        told, errors = await asyncio.wait_for(child.communicate(pickle.dumps(settings.origin)), _CHECK_WITHIN_S)
    except TimeoutError as error:
        child.kill()
        await child.wait()
        raise ConfigError(f"the configuration was not checked within {_CHECK_WITHIN_S:g} s") from error
    if child.returncode:
        raise ConfigError(errors.decode(errors="replace").strip() or f"its check ended with {child.returncode}")
    made: Settings = pickle.loads(told)  # noqa: S301 - written by our own child
    return made


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the settings that differ, each in one line."""
    return [
        f"{key}: {before.get(key, '(none)')} -> {after.get(key, '(none)')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
