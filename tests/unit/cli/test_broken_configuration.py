"""Commands answered by the daemon, with a configuration file that became invalid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.config import paths as socket_path
from tests.unit.control_node import Node, say, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

WITHOUT_A_SOCKET = "beside"


@pytest.fixture(params=["default", "given", WITHOUT_A_SOCKET])
async def node_and_source(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Node, tuple[str, ...]]]:
    """Yield a node with one invalid line in its configuration file, and the options with the path of the file.

    The path of the control socket is in the default file, in the file of ``--config``, or in the environment.
    """
    async with serving(tmp_path) as node:
        node.context.loop_statuses.waiting("images", 60, 60)
        text = node.config.read_text()
        if request.param == WITHOUT_A_SOCKET:
            text = text.partition("[control]")[0]
            monkeypatch.setenv(socket_path.VARIABLE, str(node.path))
        node.config.write_text(f"dry_run = yes please\n{text}")
        monkeypatch.setattr("os.geteuid", lambda: 0)
        monkeypatch.setattr(socket_path, "CONFIG_FILE", str(node.config))
        yield node, ("--config", str(node.config)) if request.param == "given" else ()


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ("pause --for 5m", 0, ""),
        ("resume", 0, ""),
        ("trigger other", 2, "loop 'other' is not running"),
        ("reload --dry-run", 2, "invalid TOML"),
        ("status", 0, ""),
        ("top --once", 0, ""),
    ],
)
async def test_control_command_is_answered_by_the_daemon(  # the daemon reads the configuration file only at a reload
    node_and_source: tuple[Node, tuple[str, ...]],
    capsys: pytest.CaptureFixture[str],
    words: str,
    code: int,
    error: str,
) -> None:
    _, source = node_and_source
    found, out, err = await say(capsys, *words.split(), *source)
    assert (found, error in err, bool(err)) == (code, True, bool(error)), out


async def test_hold_is_added_and_removed(
    node_and_source: tuple[Node, tuple[str, ...]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, source = node_and_source
    monkeypatch.setenv("SUDO_USER", "alice")
    assert (await say(capsys, "hold", "add", "app:*", "--why", "rollback", *source))[0] == 0
    (placed,) = (await node.ask("Holds"))["holds"]
    assert (placed["by"], placed["why"]) == ("alice", "rollback")
    assert (await say(capsys, "hold", "remove", placed["id"], *source))[0] == 0
    assert (await node.ask("Holds"))["holds"] == []
