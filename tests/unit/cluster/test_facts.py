"""Facts for the node status, read with and without a runtime."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, cast

import pytest

from nodeagent.cluster.facts import RUNTIME_DOWN, LabelReader, NodeFactsReader, plain_version, read_label_file
from nodeagent.errors import ConfigError, RuntimeUnavailableError
from nodeagent.model.node import RuntimeInfo
from nodeagent.model.runtime import Image
from nodeagent.runtime.cri import RuntimeStatus
from nodeagent.settings.settings import Config
from nodeagent.telemetry import logging as log
from nodeagent.telemetry.logging import StateLog
from nodeagent.units import SystemClock
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.runtime.cri import CriClient

PROBLEM = "NetworkReady: NetworkPluginNotReady: Network plugin returns error: cni plugin not initialized"


class Runtime:
    def __init__(self, *problems: str, error: RuntimeUnavailableError | None = None) -> None:
        self._status = RuntimeStatus(ready=True, problems=problems)
        self._error = error

    async def version(self) -> RuntimeInfo:
        if self._error is not None:
            raise self._error
        return RuntimeInfo("containerd", "1.6.20", "v1")

    async def status(self) -> RuntimeStatus:
        return self._status

    async def list_images(self) -> tuple[Image, ...]:
        return (Image("i"),)


def cri(runtime: Runtime) -> CriClient:
    return cast("CriClient", runtime)  # implements the called methods


async def test_runtime_reports_version_images_and_causes_in_the_words_of_the_kubelet() -> None:
    facts = await NodeFactsReader(Config().settings(), SystemClock()).read(cri(Runtime(PROBLEM)), frozenset())
    assert facts.runtime_version == "containerd://1.6.20"
    assert facts.images == (Image("i"),)
    # Message recorded from a kubelet on a node in this state.
    assert ", ".join(facts.not_ready) == (
        "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
        "message:Network plugin returns error: cni plugin not initialized"
    )
    assert facts.ephemeral_bytes


async def test_labels_of_the_file_precede_those_of_the_settings_and_are_read_again(tmp_path: Path) -> None:
    file, stream = tmp_path / "labels", io.StringIO()
    states = StateLog(log.configure("json", "info", stream), ManualClock())
    reader = LabelReader({"pool": "edge", "zone": "of-settings"}, file, states)
    assert await reader.read() is None
    assert "labels_file: cannot read" in stream.getvalue()
    file.write_text("# written at the first boot\ntopology.kubernetes.io/zone=a\n\nzone=b\n")
    assert await reader.read() == {"pool": "edge", "zone": "b", "topology.kubernetes.io/zone": "a"}
    file.write_text("zone\n")
    assert await reader.read() is None
    file.chmod(0o666)
    assert await reader.read() is None
    assert [text in stream.getvalue() for text in ("'zone': write a list", "not trusted")] == [True, True]
    assert await LabelReader({"a": "b"}, None, states).read() == {"a": "b"}


def test_label_file_above_64_kib_is_refused_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "labels"
    text = "zone=b\n#".ljust((64 << 10) - 7, "x") + "\npool=a"
    file.write_text(text)
    assert read_label_file(file) == {"zone": "b", "pool": "a"}
    file.write_text(text + "b")
    with pytest.raises(ConfigError, match="larger than 64 KiB"):
        read_label_file(file)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.6.20~ds1", "1.6.20"),
        ("1.6.20", "1.6.20"),
        ("v1.7.2", "1.7.2"),
        ("2.0.0-rc.1", "2.0.0-rc.1"),
        ("1.7.12+k3s1", "1.7.12+k3s1"),
        ("1.7.0-beta.0+unknown", "1.7.0-beta.0+unknown"),
        ("1.7.24~ds1-6+deb13u1", "1.7.24"),
        ("1.6.20-0ubuntu1~22.04.1", "1.6.20"),
        ("1.29", "1.29"),
        ("1.29-dev", "1.29"),
        ("1.02.3-rc", "1.2.3"),
        ("1.2.3.4-x", "1.2.3.4"),
        ("7", "7"),
        ("main", "main"),
        ("", ""),
    ],
)
def test_version_of_the_runtime_has_a_suffix_only_if_it_is_semantic(text: str, expected: str) -> None:
    assert plain_version(text) == expected


async def test_runtime_without_answer_leaves_images_unknown() -> None:
    error = RuntimeUnavailableError("no socket")
    for runtime, unread in ((None, ()), (cri(Runtime(error=error)), ("no socket",))):
        facts = await NodeFactsReader(Config().settings(), SystemClock()).read(runtime, None, not_ready=("also",))
        assert facts.not_ready == (RUNTIME_DOWN, "also")
        assert facts.images is None
        assert facts.unread == unread
