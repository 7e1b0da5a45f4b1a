"""``nodeagent doctor --fix-logind``: raise logind's delay limit to cover all phases of a graceful shutdown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.cli.output import warn
from nodeagent.errors import InhibitorError
from nodeagent.host.logind_config import own_drop_in, read_delay, write_drop_in
from nodeagent.host.processes import run
from nodeagent.observe.node_role import read_role
from nodeagent.plan.shutdown.budget import required_delay_s

if TYPE_CHECKING:
    from nodeagent.config.settings import Settings

_ROOT: Final = Path("/")
_RELOAD_WITHIN_S: Final = 20


def fix_logind(settings: Settings, root: Path = _ROOT) -> None:
    """Write the drop-in that raises the delay limit, unless the limit is sufficient, and reload logind.

    Raises:
        InhibitorError: the drop-in cannot be written, or logind cannot be reloaded.
    """
    role = read_role(settings.role)
    off = settings.shutdown.off_because(role.role, role.reason)  # in a dry run and a pause the limit can be prepared
    if off:
        warn(f"nodeagent: logind configuration not changed: graceful shutdown disabled: {off}")
        return
    required_s = required_delay_s(settings.shutdown.phases)
    delay = read_delay(root)
    if delay.delay_us >= required_s * 1_000_000:
        warn(f"nodeagent: logind configuration not changed: {delay.set_by} allows at least {required_s}s")
    else:
        drop_in = own_drop_in(required_s, root)
        write_drop_in(drop_in)
        warn(f"nodeagent: wrote {drop_in.path}: logind delays a shutdown by at most {required_s}s")
    if root == _ROOT:  # even without a change: logind may not have been reloaded since the last change
        _reload_logind()


def _reload_logind() -> None:
    words = ("systemctl", "kill", "--signal=HUP", "systemd-logind.service")
    completed = run(*words, within_s=_RELOAD_WITHIN_S)
    if completed is None or completed.returncode:
        cause = completed.stderr.strip() if completed else "systemctl not found, or no answer"
        raise InhibitorError(f"cannot reload logind: {cause}; run {' '.join(words)}")
