"""``nodeagent reload``: changes, effect and grace period in 80 columns; ``--dry-run`` reloads nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent import __version__
from nodeagent.api import operations
from nodeagent.cli import control_client
from nodeagent.daemon.service_manager import ReloadTask
from nodeagent.host.systemd import Notifier
from nodeagent.model.runtime import ContainerState
from nodeagent.record import replace
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Origin
from tests.unit.control_node import GROUP_NAME, IMAGE, MEMBER, STRANGER, Node, say, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

DRY, ACTIVE = "dry_run = true\n", "dry_run = false\n"


@asynccontextmanager
async def reloading(node: Node) -> AsyncIterator[None]:
    """Run the reload task of the daemon within the block."""
    stop = asyncio.Event()
    running = asyncio.ensure_future(ReloadTask(node.context, Notifier({})).run(stop))
    yield
    stop.set()
    await running


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """Yield a node with a daemon in a dry run."""
    async with serving(tmp_path) as made, reloading(made):
        monkeypatch.setattr(control_client, "find_socket", lambda config: made.path if config is None else config)
        made.config.write_text(DRY + made.config.read_text() + '[eviction]\nenabled = "off"\n')
        settings = checked(Origin(made.config))
        made.context.settings = replace(settings, control=replace(settings.control, group=GROUP_NAME))
        yield made


def write(node: Node, before: str, after: str) -> None:
    node.config.write_text(node.config.read_text().replace(before, after))


async def test_reload_prints_changes_effect_and_grace_period(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    write(node, DRY, ACTIVE)
    code, out, err = await say(capsys, "reload")
    assert (code, err) == (0, "")
    first, second, third, *items, last = out.splitlines()
    assert first == "Configuration reloaded: 1 setting changed"
    assert second == "  dry_run: true -> false"
    assert third.startswith("Next passes remove: 2 containers")
    assert len(items) == 2
    assert last == "Removals starting in 1m; 'nodeagent pause --for 30m --why TEXT' stops it"
    assert node.context.grace.pending


async def test_reload_as_json_is_one_document(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    write(node, DRY, ACTIVE)
    code, out, _ = await say(capsys, "reload", "-o", "json")
    shown = json.loads(out)
    assert (code, shown["schema"], shown["applied"]) == (0, "nodeagent/reload/v1", True)
    assert shown["changes"] == ["dry_run: true -> false"]
    assert (shown["effect"]["known"], shown["effect"]["items"], len(shown["effect"]["first"])) == (True, 2, 2)
    assert [(each["kind"], each["items"]) for each in shown["effect"]["kinds"]] == [("container", 2)]
    assert 59 < shown["grace"]["seconds"] <= 60


async def test_dry_run_prints_the_same_effect_and_changes_nothing(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    write(node, DRY, ACTIVE)
    before, logged = node.context.newest, node.log.getvalue()
    code, out, _ = await say(capsys, "reload", "--dry-run")
    assert code == 0
    assert out.startswith("Configuration not reloaded (--dry-run): 1 setting would change\n  dry_run: true -> false\n")
    assert "Next passes would remove: 2 containers" in out
    assert out.endswith("Removals would start in 1m\n")
    assert node.context.newest is before
    assert not node.context.renew.is_set()
    assert not node.context.grace.pending
    assert node.logged("config_reloaded") == []
    assert "reload" not in node.log.getvalue()[len(logged) :]
    preview = json.loads((await say(capsys, "reload", "--dry-run", "-o", "json"))[1])
    real = json.loads((await say(capsys, "reload", "-o", "json"))[1])
    assert preview["effect"] == real["effect"]
    assert (preview["applied"], real["applied"]) == (False, True)


async def test_member_may_preview_a_reload_but_not_reload(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    write(node, DRY, ACTIVE)
    node.peer[0] = MEMBER
    assert (await say(capsys, "reload", "--dry-run"))[0] == 0
    code, _, err = await say(capsys, "reload")
    assert (code, "control.group_may_act = true" in err) == (1, True)
    node.peer[0] = STRANGER
    assert (await say(capsys, "reload", "--dry-run"))[0] == 1
    assert not node.context.renew.is_set()


async def test_invalid_configuration_is_refused_with_and_without_dry_run(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    write(node, DRY, "dry_run = 1\n")
    code, _, err = await say(capsys, "reload", "--dry-run")
    assert (code, "must be true or false" in err, node.context.config_problem) == (2, True, "")
    code, _, err = await say(capsys, "reload")
    assert (code, "must be true or false" in err) == (2, True)
    assert node.context.config_problem


async def test_unknown_effect_is_reported_and_reload_grace_applies(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    write(node, DRY, ACTIVE)
    node.faults.fail("ListContainers", times=None, status="UNAVAILABLE", detail="runtime away")
    code, out, _ = await say(capsys, "reload", "--dry-run")
    assert (code, "Effect unknown: " in out) == (3, True)
    code, out, _ = await say(capsys, "reload")
    assert (code, "Effect unknown: " in out, "Removals starting in 1m" in out) == (0, True, True)
    assert node.context.grace.pending


async def test_unchanged_configuration_is_reported(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert (await say(capsys, "reload"))[:2] == (0, "Configuration unchanged\n")
    assert (await say(capsys, "reload", "-n"))[:2] == (0, "Configuration unchanged\n")
    write(node, DRY, ACTIVE)
    await say(capsys, "reload")
    code, out, _ = await say(capsys, "reload")
    assert (code, out.splitlines()[0], "Removals starting in " in out) == (0, "Configuration unchanged", True)


async def test_change_without_effect_is_reported(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    write(node, 'enabled = "off"', 'enabled = "off"\n[history]\nmaximum_age = "31d"')
    assert (await say(capsys, "reload"))[1].splitlines() == [
        "Configuration reloaded: 1 setting changed",
        '  history.maximum_age: "30d" -> "31d"',
        "Effect on the next passes: none",
        "dry_run = true: nothing is removed",
    ]


async def test_additional_removals_of_a_change_are_printed(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    write(node, DRY, ACTIVE)
    write(node, "max_per_pod_container = 0", "max_per_pod_container = 9")
    node.context.settings = checked(Origin(node.config))
    write(node, "max_per_pod_container = 9", "max_per_pod_container = 0")
    code, out, _ = await say(capsys, "reload")
    assert (code, "Next passes remove in addition: 2 containers" in out, "starting" in out) == (0, True, False)


async def test_change_in_a_dry_run_is_reported_to_remove_nothing(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    write(node, "max_per_pod_container = 0", "max_per_pod_container = 9")
    node.context.settings = checked(Origin(node.config))
    write(node, "max_per_pod_container = 9", "max_per_pod_container = 0")
    _, out, _ = await say(capsys, "reload")
    assert "Next passes would remove in addition: 2 containers" in out
    assert out.endswith("dry_run = true: nothing is removed\n")


async def test_every_line_is_printable_and_fits_80_columns(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    sandbox = node.sim.add_pod("x" * 120 + "\x1b[31m")
    for number in range(12):
        node.sim.add_container(sandbox, "c" * 90, IMAGE, state=ContainerState.EXITED, age_s=7200 + number)
    write(node, DRY, ACTIVE)
    write(node, 'enabled = "off"', f'enabled = "off"\nprotected_namespaces = ["{"n" * 200}", "{"o" * 60}"]')
    for words in (("reload", "--dry-run"), ("reload",)):
        code, out, _ = await say(capsys, *words)
        assert code == 0
        assert max(map(len, out.splitlines())) <= 80
        assert all(each.isprintable() for each in out.splitlines())
        assert "  and 4 more; 'nodeagent gc all --dry-run' lists them" in out


async def test_dry_run_never_reloads_an_older_daemon(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(node, DRY, ACTIVE)
    unknown = operations.OPERATIONS["PreviewReload"]._replace(path="/v1/unknown")
    monkeypatch.setitem(operations.OPERATIONS, "PreviewReload", unknown)
    code, _, err = await say(capsys, "reload", "--dry-run")
    assert (code, f"daemon version {__version__} does not support PreviewReload" in err) == (1, True)
    assert not node.context.renew.is_set()


async def test_reload_grace_starts_at_the_end_of_a_pause(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    await say(capsys, "pause", "--for", "10m")
    write(node, DRY, ACTIVE)
    assert (await say(capsys, "reload"))[1].splitlines()[-1] == "Removals starting 1m after the end of the pause"


async def test_status_shows_the_rest_of_reload_grace(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    write(node, DRY, ACTIVE)
    await say(capsys, "reload")
    _, out, _ = await say(capsys, "status")
    assert "left): dry run during reload_grace" in out
    assert "nothing is removed" not in out
    await say(capsys, "pause", "--for", "10m")
    _, out, _ = await say(capsys, "status")
    assert "paused (" in out
    assert "then dry run for 1m (reload_grace)" in " ".join(out.split())


@pytest.mark.parametrize("words", [("--yes",), ()])
async def test_removal_by_a_member_is_refused_during_reload_grace(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    write(node, DRY, ACTIVE)
    await say(capsys, "reload")
    node.peer[0] = MEMBER
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("nodeagent.cli.gc.confirm", lambda _: True)
    settings = node.context.settings
    node.context.settings = replace(settings, control=replace(settings.control, group_may_act=True))
    node.context.renew.clear()
    code, _, err = await say(capsys, "gc", "containers", *words)
    assert (code, "reload grace period" in err) == (2, True)
    assert len(node.sim.containers) == 2


async def test_trigger_of_a_dry_run_is_marked(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    loop_statuses, wake = node.context.loop_statuses, asyncio.Event()
    node.context.wake["images"] = wake
    agent: Any = node.context.agent
    node.context.agent = dataclasses.replace(agent, dry_run=True)
    loop_statuses.waiting("images", 600, 600)
    output = asyncio.ensure_future(say(capsys, "trigger", "images", "--wait"))
    await asyncio.wait_for(wake.wait(), 20)
    loop_statuses.running("images", 60)
    loop_statuses.ended("images", "complete")
    assert (await output)[1] == "images: complete (dry run)\n"


async def test_configuration_writable_by_other_users_is_rejected_and_the_last_one_kept(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = node.context.settings
    directory = node.config.with_name("config.d")
    directory.mkdir()
    directory.chmod(0o777)
    (directory / "10.toml").write_text(ACTIVE)
    for words in (("reload",), ("reload", "--dry-run")):
        code, out, err = await say(capsys, *words)
        assert (code, out) == (2, "")
        assert f"{directory} is writable by all users; run: chmod o-w {directory}" in err
    assert node.context.settings is kept
    assert not node.context.grace.pending
