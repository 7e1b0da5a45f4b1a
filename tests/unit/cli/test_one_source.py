"""On random nodes, every verdict, order, age and byte count that a command prints is that of the daemon's plan."""

from __future__ import annotations

import asyncio
import json
import random
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from nodeagent.api.requests import ExplainRequest, PlanRequest
from nodeagent.cli.gauges import used_of
from nodeagent.cli.gc import effect_text
from nodeagent.cli.table import age, size_cell
from nodeagent.gc.pass_state import Preview
from nodeagent.gc.plan.image_protection import Irreplaceable, irreplaceable_images
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import LIMITS, Scope
from nodeagent.model.decision import Accounting, Decision, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.model.runtime import ContainerState
from nodeagent.pods.plan.deletion import check_pods
from nodeagent.record import replace
from nodeagent.units import format_bytes, format_local_time, localize_times
from tests.sim.content import Layer
from tests.sim.node import PAUSE, SimNode
from tests.unit.builders import NOW, filesystem, snapshot
from tests.unit.control_node import Node, say, serving

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from nodeagent.model.node import NodeSnapshot

SEEDS: Final = range(40)
MIB: Final = 1 << 20
DAY_S: Final = 86_400.0
_REPOSITORIES: Final = ("registry.example/shop/web", "registry.example/data/report", "docker.io/library/redis")

Dice = random.Random


def _random_node(dice: Dice, root: Path) -> SimNode:
    """Return a node with shared layers, imported images, dead containers and empty sandboxes."""
    sim = SimNode(seed=dice.randrange(1000), root_path=str(root), capacity_bytes=20 << 30)
    sim.add_image(PAUSE, layers=[Layer("pause", MIB)], pinned=dice.random() < 0.5, age_s=60 * DAY_S)
    bases = [(Layer(f"base-{number}", dice.randrange(20, 400) * MIB),) for number in range(3)]
    names = []
    for number in range(dice.randrange(4, 14)):
        name = f"{dice.choice(_REPOSITORIES)}:v{number}"
        own = Layer(f"own-{number}", dice.choice([0, 1, 40, 300, 900]) * MIB)
        age_s = dice.choice([5.0, 60.0, 3600.0, dice.uniform(1, 60) * DAY_S])
        sim.add_image(
            name,
            layers=[*dice.choice([(), *bases]), own],
            age_s=age_s,
            pinned=dice.random() < 0.1,
            imported=dice.random() < 0.3,
        )
        names.append(name)
    for number in range(dice.randrange(1, 7)):
        ready = dice.random() < 0.6
        sandbox = sim.add_pod(
            f"pod-{number}", ready=ready, age_s=dice.choice([10.0, DAY_S]), labelled=dice.random() > 0.1
        )
        for place in range(dice.randrange(4)):
            states = list(ContainerState) if ready else [ContainerState.EXITED]
            sim.add_container(
                sandbox,
                f"c{place % 2}",
                dice.choice(names),
                state=dice.choice(states),
                attempt=place,
                age_s=dice.choice([5.0, 600.0, 9000.0 + place]),
                ended_s=dice.choice([5.0, 400.0]),
                writable_bytes=dice.randrange(50) * MIB,
            )
    sim.fill_to(max(dice.choice([40, 80, 84, 85, 90, 97]), 100 * sim.store.used_bytes / sim.capacity_bytes + 1))
    return sim


def _random_settings(dice: Dice) -> str:
    """Return sections of the configuration, with thresholds near the usage of the nodes."""
    high = dice.choice([60, 84, 85, 86, 100])
    irreplaceable = dice.choice(["last", "last", "never", "ignore"])
    gain = "0" if irreplaceable == "last" else dice.choice(["0", "10Mi"])  # the order of both has its own tests
    return (
        f"[image_gc]\nhigh_threshold_percent = {high}\nlow_threshold_percent = {high - dice.choice([1, 5, 30])}\n"
        f'minimum_age = "{dice.choice(["0s", "2m", "1h"])}"\n'
        f'maximum_unused_age = "{dice.choice(["0s", "2h", "30d"])}"\n'
        f'minimum_gain = "{gain}"\n'
        f"max_images_per_pass = {dice.choice([0, 0, 1, 3])}\n"
        f'max_bytes_per_pass = "{dice.choice(["0", "0", "500Mi"])}"\n'
        f'irreplaceable = "{irreplaceable}"\n'
        f"unreachable_registries = {dice.choice(['[]', '[]', json.dumps(['docker.io'])])}\n"
        f"[protect]\nimages = {dice.choice(['[]', json.dumps(['*/report:v1'])])}\n"
        f"keep_last_n_tags_per_repository = {dice.choice([0, 0, 1])}\n"
    )


@pytest.mark.parametrize("seed", SEEDS)
async def test_commands_print_the_plans_of_the_collection_loops(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    disks: list[SimNode],
    seed: int,
) -> None:
    dice = random.Random(seed)
    sim = _random_node(dice, tmp_path)
    disks.append(sim)
    limit, extra = dice.choice([-1, 0, 1]), _random_settings(dice)
    async with serving(tmp_path, sim=sim, clock=sim.clock, max_per_pod_container=limit, extra=extra) as node:
        monkeypatch.setattr("nodeagent.config.files.DEFAULT_PATH", node.config)
        monkeypatch.setattr("nodeagent.config.paths.CONFIG_FILE", str(node.config))
        await _observe_for_a_while(dice, node)
        shown = _Shown(node, capsys)
        await shown.check()
        assert not shown.differences, "\n".join(shown.differences)


@pytest.mark.parametrize("route", ["without a daemon", "as a member"])
async def test_space_in_the_undo_window_is_freed_by_the_printed_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    disks: list[SimNode],
    route: str,
) -> None:
    sim = SimNode(root_path=str(tmp_path), capacity_bytes=1 << 30)
    disks.append(sim)
    sim.add_image(PAUSE, layers=[Layer("pause", MIB)], pinned=True, age_s=DAY_S)
    sim.add_image("registry.example/web:v1", layers=[Layer("web", 300 * MIB)], age_s=DAY_S)
    sim.fill_to(90)
    monkeypatch.setattr("nodeagent.gc.agent.SystemClock", lambda: sim.clock)
    monkeypatch.setattr("nodeagent.gc.pass_state.SETTLE_WITHIN_S", 0.0)
    for name in ("add_signal_handler", "remove_signal_handler"):  # possible only in the main thread
        monkeypatch.setattr(asyncio.SelectorEventLoop, name, lambda *_: None)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("nodeagent.cli.gc.confirm", lambda question: print(f"PROMPT {question}") is None)
    async with serving(tmp_path, sim=sim, clock=sim.clock) as node:
        direct = ("--config", str(node.config))
        if route == "as a member":
            monkeypatch.setattr("nodeagent.config.files.DEFAULT_PATH", node.config)
            monkeypatch.setattr("nodeagent.config.paths.CONFIG_FILE", str(node.config))
            monkeypatch.setattr("os.geteuid", lambda: 4711)
        _, out, _ = await say(capsys, "gc", "images", *(direct if route == "without a daemon" else ()))
        before_yes, removed = re.split(
            r"PROMPT Remove 1 image \(after the undo window of 10m imagefs 90% -> \d\d%, frees \S+ MiB\)\?\n", out
        )
        assert "freed after the undo window of 10m; now with --undo-window 0s" in before_yes
        assert "Total: after the undo window of 10m imagefs 90% -> " in before_yes
        until, command = re.findall(r"until (\S+ \S+ \S+?): .*\n.*without a daemon: nodeagent (.*)\n", removed)[0]
        assert until == format_local_time(sim.now + timedelta(seconds=600))
        sim.collect_garbage()
        kept_bytes = sim.store.used_bytes
        sim.clock.advance(601)
        monkeypatch.setattr("os.geteuid", lambda: 0)
        await say(capsys, *command.split(), *direct)
        assert sim.store.used_bytes < kept_bytes - 300 * MIB


@pytest.mark.parametrize(
    ("window_s", "accounting", "container_bytes", "used_percent", "text"),
    [
        (0, Accounting.LAYERS, 100, 50, "imagefs 50% -> 20%, frees 300 MiB"),
        (
            60,
            Accounting.LAYERS,
            100,
            50,
            "imagefs 50% -> 40%, frees 100 MiB; {later} imagefs 40% -> 20%, frees 200 MiB",
        ),
        (60, Accounting.LAYERS, 0, 50, "{later} imagefs 50% -> 30%, frees 200 MiB"),
        (60, Accounting.UPPER_BOUND, 0, 50, "{later} imagefs 50% -> \u226530%, frees \u2264 200 MiB"),
        (60, Accounting.LAYERS, 100, None, "frees 100 MiB; {later} frees 200 MiB"),
    ],
    ids=["no window", "both", "images only", "upper bound", "no reading"],
)
def test_predicted_effect_has_the_space_of_now_and_that_after_the_undo_window(
    *, window_s: float, accounting: Accounting, container_bytes: int, used_percent: int | None, text: str
) -> None:
    sizes = {ItemKind.CONTAINER: container_bytes, ItemKind.IMAGE: 200}
    decisions = tuple(
        Decision(kind, kind.value, "", Verdict.REMOVE, Reason(ReasonCode.UNUSED_TOO_LONG), size * MIB)
        for kind, size in sizes.items()
    )
    observed = snapshot(image_filesystem=None if used_percent is None else filesystem(used_percent))
    preview = Preview(Scope.ALL, observed, (Plan("images", NOW, decisions, accounting),))
    assert effect_text(preview, window_s) == text.format(later="after the undo window of 1m")


@pytest.mark.parametrize("window", ["10m", "0s"])
async def test_previews_contain_the_undo_window_of_their_removals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], disks: list[SimNode], window: str
) -> None:
    sim = SimNode(root_path=str(tmp_path), capacity_bytes=1 << 30)
    disks.append(sim)
    sim.add_image("registry.example/web:v1", layers=[Layer("web", 300 * MIB)], age_s=DAY_S)
    sim.fill_to(90)
    extra = f'[image_gc]\nundo_window = "{window}"\n'
    async with serving(tmp_path, sim=sim, clock=sim.clock, extra=extra) as node:
        _, out, _ = await say(capsys, "gc", "images", "--dry-run", "-o", "json", "--config", str(node.config))
        images = await node.ask("Plan", PlanRequest(scope="images"))
        containers = await node.ask("Plan", PlanRequest(scope="containers"))
    shown = json.loads(out)["undo_window_s"], images["undo_window_s"], containers["undo_window_s"]
    assert shown == ((600, 600, 0) if window == "10m" else (0, 0, 0))


async def _observe_for_a_while(dice: Dice, node: Node) -> None:
    """Let passes observe the node for up to four hours, in which containers end."""
    agent = node.context.agent
    assert agent is not None
    for _ in range(dice.choice([0, 0, 2, 13])):
        await agent.preview(Scope.IMAGES)
        running = [each for each in node.sim.containers.values() if each.running]
        if running and dice.random() < 0.2:
            node.sim.exit_container(dice.choice(running))
        node.sim.clock.advance(600)


class _Shown:
    """Documents and screens of the commands, compared with the plans of the daemon's loops for the same node.

    Attributes:
        differences: statements that differ from the plans.
    """

    def __init__(self, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
        agent = node.context.agent
        assert agent is not None
        self._node, self._agent, self._capsys = node, agent, capsys
        self.differences: list[str] = []

    async def check(self) -> None:
        """Make the plans of both loops, as their passes do, and compare the output of the commands with them."""
        self.containers = await self._agent.collector.prepare(Scope.CONTAINERS)
        self.images = await self._agent.collector.prepare(Scope.IMAGES)
        (self.plan,) = self.images.plans
        self.snapshot, self.policy = self.images.snapshot, self._agent.settings.policy
        self.full = self._in_removal_order()
        self.ordered = list(dict.fromkeys((*(each.id for each in self.plan.removals), *self.full)))
        await self._check_images()
        await self._check_containers()
        await self._check_pods()
        for preview in (self.images, self.containers):
            await self._check_preview(preview)
        for decision in self.plan.decisions:
            await self._check_explanation(decision)
        for decision in _decisions(self.containers):
            if decision.kind in (ItemKind.CONTAINER, ItemKind.SANDBOX):
                self._same_decision("explain", await self._explained(decision.id), decision)
        await self._check_status()
        await self._check_usage()

    def _same(self, where: str, shown: object, planned: object) -> None:
        if shown != planned:
            self.differences.append(f"{where}: {shown!r}, planned {planned!r}")

    def _same_decision(self, where: str, shown: Mapping[str, Any], planned: Decision) -> None:
        self._same(f"{where} verdict", shown["verdict"], planned.verdict.value)
        self._same(f"{where} reason", shown["reason"]["code"], planned.reason.code.value)
        if "frees_bytes" in shown:
            frees = planned.frees_bytes, planned.frees_inodes
            self._same(f"{where} frees", (shown["frees_bytes"], shown["frees_inodes"]), frees)

    def _same_row(self, where: str, row: Mapping[str, str], planned: Decision) -> None:
        shown = row["VERDICT"], row["REASON"], row["MESSAGE"]
        self._same(
            where, shown, (planned.verdict.value, planned.reason.code.value, localize_times(planned.reason.sentence))
        )

    async def _say(self, *words: str) -> str:
        code, out, err = await say(self._capsys, *words)
        assert code in (0, 1, 3), (words, out, err)
        return out

    async def _document(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self._say(*words, "-o", "json"))
        return found

    async def _listed(self, name: str, title: str) -> dict[str, tuple[dict[str, Any], dict[str, str]]]:
        """Return the document and the row of each item of a list, by id."""
        document, table = await self._document(name), await self._say(name, "-o", "wide")
        rows = {row[title]: row for row in rows_of(table)}
        key = "uid" if name == "pods" else "id"
        return {each[key]: (each, rows[each[key]]) for each in document[name]}

    async def _check_images(self) -> None:
        listed, now = await self._listed("images", "IMAGE ID"), self.snapshot.observed_at
        self._same("images", sorted(listed), sorted(each.id for each in self.plan.decisions))
        origins = _origins(self.snapshot, self.policy.images.protection.unreachable_registries)
        for each in self.plan.decisions:
            document, row = listed[each.id]
            self._same_decision("images", document, each)
            self._same_row("images", row, each)
            self._same("images frees", row["FREES"], size_cell(each.frees_bytes))
            usage = self.snapshot.image_usage[each.id]
            used = "none seen" if usage.last_used is None else age(usage.last_used, now)
            self._same("images last used", row["LAST USED"], used)
            first = "now" if usage.first_detected == now else age(usage.first_detected, now)
            self._same("images detected", row["DETECTED"], first)
            self._same("images origin", (document.get("origin"), row.get("ORIGIN")), (origins[each.id],) * 2)

    async def _check_containers(self) -> None:
        listed, now = await self._listed("containers", "CONTAINER ID"), self.containers.snapshot.observed_at
        created = {each.id: each.created_at for each in self.containers.snapshot.containers}
        decisions = [each for each in _decisions(self.containers) if each.kind is ItemKind.CONTAINER]
        self._same("containers", sorted(listed), sorted(each.id for each in decisions))
        for each in decisions:
            document, row = listed[each.id]
            self._same_decision("containers", document, each)
            self._same_row("containers", row, each)
            at = created[each.id]
            self._same("containers age", row["AGE"], "?" if at is None else age(at, now))

    async def _check_pods(self) -> None:
        statuses = check_pods(self.containers.snapshot, self.policy.containers.deleted_pod_grace_s)
        for uid, (document, row) in (await self._listed("pods", "UID")).items():
            deleted = uid in statuses and statuses[uid].deleted
            self._same("pods gone", document["gone"], deleted)
            self._same("pods status", row["STATUS"] == "Deleted", deleted)
            self._same("pods status in JSON", row["STATUS"], document["status"])

    async def _check_preview(self, preview: Preview) -> None:
        words = ("gc", preview.scope.value, "--dry-run")
        document, screen = await self._document(*words), await self._say(*words)
        for shown, plan in zip(document["plans"], preview.plans, strict=True):
            self._same("gc order", [each["id"] for each in shown["decisions"]], [each.id for each in plan.decisions])
            for listed, decision in zip(shown["decisions"], plan.decisions, strict=True):
                self._same_decision("gc", listed, decision)
            for name in ("wanted_bytes", "pending_bytes", "frees_bytes", "shortfall_bytes"):
                self._same(f"gc {name}", shown[name], getattr(plan, name))
            removed = f"{len(plan.removals)} of {len(plan.decisions)}" if plan.removals else "no"
            assert f"Removes {removed} {plan.kind}" in screen
        lines = [each for each in screen.splitlines() if each.startswith("Short of")]
        for line, plan in zip(lines, [each for each in preview.plans if each.shortfall_bytes], strict=True):
            limited = sum(each.reason.code in LIMITS for each in plan.decisions)
            rest = f"{limited} more kept by the limit per pass" if limited else "no other image may be removed"
            expected = f"Short of the target by {format_bytes(plan.shortfall_bytes)}; {rest}"
            self._same("gc shortfall", line, expected)

    async def _explained(self, item_id: str) -> dict[str, Any]:
        found = (await self._node.ask("Explain", ExplainRequest(name=item_id)))["explanations"]
        (one,) = [each for each in found if each["id"] == item_id]
        return dict(one)

    async def _check_explanation(self, decision: Decision) -> None:
        shown, screen = await self._explained(decision.id), await self._say("explain", decision.id)
        self._same_decision("explain", shown, decision)
        assert f"{decision.verdict.value}: {localize_times(decision.reason.sentence)}" in screen
        number, removals = self.plan.decisions.index(decision), self.plan.removals
        place = self.ordered.index(decision.id) + 1 if decision.id in self.ordered else None
        order = place, place and len(self.ordered), min(number, len(removals))
        self._same("explain order", (shown["position"], shown["positions"], shown["removals_before"]), order)
        self._same("explain order line", "\n  order" in screen, place is not None)
        if decision.verdict is Verdict.REMOVE:
            self._same("explain when", shown["when"], f"in the next pass, as number {number + 1} of {len(removals)}")
        usage, now = self.snapshot.image_usage[decision.id], self.snapshot.observed_at
        first = "first by this reading" if usage.first_detected == now else f"{age(usage.first_detected, now)} ago"
        used = "no use observed" if usage.last_used is None else f"last used {age(usage.last_used, now)} ago"
        line = re.search(r"\n  detected +(.*)", screen)
        self._same("explain detected", line and line[1], f"{first}, {used}")
        origins = _origins(self.snapshot, self.policy.images.protection.unreachable_registries)
        line = re.search(r"\n  origin +(.*)", screen)
        self._same("explain origin", (shown.get("origin"), line and line[1]), (origins[decision.id],) * 2)
        self._check_condition(shown, decision)

    def _check_condition(self, shown: Mapping[str, Any], decision: Decision) -> None:
        """Compare the condition under which a kept image is removed with the plan under this condition."""
        text, images = shown["when"], self.policy.images
        protection = images.protection
        last = irreplaceable_images(self.snapshot, protection.unreachable_registries)
        if decision.id in last and protection.irreplaceable is Irreplaceable.LAST:
            self._same(f"removal by age in {text!r}", "unused for" in text, False)
            self._same(f"order of use in {text!r}", "in order of use" in text, False)
            if images.high_threshold_percent == 100 and decision.verdict is not Verdict.REMOVE:
                self._same(f"threshold in {text!r}", "above its high threshold" in text, False)
        fuller = re.search(r"once imagefs is \d+% full(?:, (.+?) more than now)?", text)
        if fuller is not None:
            least = _least_bytes_to_threshold(self.snapshot, images.high_threshold_percent)
            self._same("bytes to the threshold", fuller[1], format_bytes(least) if least else None)
        earlier = re.search(r"removing the (\d+) less recently used \((.+?)\) is not enough", text)
        if earlier is not None:
            before = self.full[: self.full.index(decision.id)]
            freed = format_bytes(_bytes_of(self.snapshot, before))
            self._same("removals before", (int(earlier[1]), earlier[2]), (len(before), freed))
        if shown["eligible_at"] is not None:
            at = datetime.fromisoformat(shown["eligible_at"]) + timedelta(seconds=1)
            later = plan_image_gc(replace(self.snapshot, observed_at=at), images)
            (then,) = [each for each in later.decisions if each.id == decision.id]
            removable = then.verdict is Verdict.REMOVE or then.reason.code in LIMITS
            by_age = decision.reason.code in (ReasonCode.BELOW_HIGH_THRESHOLD, ReasonCode.ENOUGH_FREED)
            waits = then.reason.code in (ReasonCode.TOO_YOUNG, ReasonCode.AGE_NOT_OBSERVED)
            self._same(f"eligible {decision.reason.code}", removable or not (by_age or waits), True)

    def _in_removal_order(self) -> list[str]:
        """Return the images that the loop would remove, in order, on a filesystem that only grows, without limits."""
        observed, images = self.snapshot.image_filesystem, self.policy.images
        assert observed is not None
        full = replace(self.snapshot, image_filesystem=replace(observed, available_bytes=0))
        everything = replace(
            images,
            high_threshold_percent=99,
            low_threshold_percent=1,
            maximum_unused_age_s=0.0,
            max_images_per_pass=0,
            max_bytes_per_pass=0,
        )
        plan = plan_image_gc(full, everything)
        last = [each.id for each in plan.decisions if each.reason.code is ReasonCode.IRREPLACEABLE_INSUFFICIENT]
        return [*(each.id for each in plan.removals), *last]

    async def _check_status(self) -> None:
        status, screen, observed = (
            await self._document("status"),
            await self._say("status"),
            self.snapshot.image_filesystem,
        )
        assert observed is not None
        (imagefs,) = [each for each in status["filesystems"] if each["name"].startswith("imagefs")]
        images = self.policy.images
        for name, planned in (
            ("used_percent", observed.used_percent),
            ("available_bytes", observed.available_bytes),
            ("high_percent", images.high_threshold_percent),
            ("low_percent", images.low_threshold_percent),
        ):
            self._same(f"status {name}", imagefs[name], planned)
        used_bytes = observed.capacity_bytes - observed.available_bytes
        assert (
            f"{observed.used_percent}%  {used_of(format_bytes(used_bytes), format_bytes(observed.capacity_bytes))}"
            in screen
        )
        since = status["image_use"]["observed_since"]
        since = None if since is None else datetime.fromisoformat(since)
        self._same("status image use", since, self.snapshot.image_use_observed_since)
        by_age = any(each.reason.code is ReasonCode.UNUSED_TOO_LONG for each in self.plan.decisions)
        self._same("status removal by age", by_age and "no image is removed by age" in screen, False)

    async def _check_usage(self) -> None:
        shares = {each["part"]: each for each in (await self._document("du", "--timeout", "1s"))["shares"]}
        in_use = {ReasonCode.IN_USE_BY_CONTAINER, ReasonCode.IN_USE_BY_SANDBOX}
        for part, used in (("images-in-use", True), ("images-unused", False)):
            names = sorted(each["name"] for each in shares[part]["largest"])
            planned = sorted(each.name for each in self.plan.decisions if (each.reason.code in in_use) is used)
            self._same(f"du {part}", names, planned)
        alive = {ReasonCode.RUNNING, ReasonCode.STATE_UNKNOWN}
        decided = [each for each in _decisions(self.containers) if each.kind is ItemKind.CONTAINER]
        states = {each.id: each.state for each in self.containers.snapshot.containers}
        dead = [each for each in decided if each.reason.code not in alive]
        dead = [each for each in dead if states[each.id] not in (ContainerState.RUNNING, ContainerState.UNKNOWN)]
        layers = shares["writable-layers-dead"]["largest"]
        listed = sorted(f"{each['pod']}/{each['name']}" for each in layers if each["name"] != "sandbox")
        self._same("du dead containers", listed, sorted(each.name for each in dead))
        sizes = [(f"{each['pod']}/{each['name']}", each["bytes"]) for each in layers]
        for each in dead:
            if each.frees_bytes is not None:
                own = [size - each.frees_bytes for name, size in sizes if name == each.name]
                self._same("du bytes", any(0 <= more <= _LAYER_DIRECTORIES_BYTES for more in own), True)


_LAYER_DIRECTORIES_BYTES = 2 * 4096
"""Directories of a layer that its usage as reported by the runtime does not include, but ``du`` does."""


def _decisions(preview: Preview) -> Iterator[Decision]:
    return (decision for plan in preview.plans for decision in plan.decisions)


def rows_of(table: str) -> list[dict[str, str]]:
    """Return the rows of a table printed in a pipe, by heading."""
    headings, *rows = [re.split(r" {2,}", line.strip()) for line in table.splitlines()] or [[]]
    return [dict(zip(headings, row, strict=True)) for row in rows]


def _origins(snapshot: NodeSnapshot, unreachable: tuple[str, ...]) -> dict[str, str]:
    causes, sources = irreplaceable_images(snapshot, unreachable), snapshot.image_sources or {}
    return {each.id: causes.get(each.id) or ("pulled" if each.id in sources else "unknown") for each in snapshot.images}


def _least_bytes_to_threshold(snapshot: NodeSnapshot, high: int) -> int:
    """Return the least number of further used bytes at which the usage in percent is at a threshold, by search."""
    observed = snapshot.image_filesystem
    assert observed is not None
    if observed.used_percent >= high:
        return 0
    below, above = 0, observed.available_bytes
    while above - below > 1:
        middle = (above + below) // 2
        fuller = replace(observed, available_bytes=observed.available_bytes - middle)
        below, above = (below, middle) if fuller.used_percent >= high else (middle, above)
    return above


def _bytes_of(snapshot: NodeSnapshot, image_ids: Iterable[str]) -> int:
    """Return the bytes that the removal of these images frees together."""
    graph, removed = snapshot.storage, set(image_ids)
    assert graph is not None
    users: dict[int, set[str]] = {}
    for image_id, indexes in graph.by_image.items():
        for index in indexes:
            users.setdefault(index, set()).add(image_id)
    return sum(
        graph.pieces[index].size_bytes
        for index, own in users.items()
        if own <= removed and not graph.pieces[index].references
    )
