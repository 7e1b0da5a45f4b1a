"""Settings that the plan reads from containerd's files, compared with those of a real containerd."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

import pytest

from nodeagent.doctor.plan.containerd import (
    DISCARD_LAYERS,
    SANDBOX_IMAGE,
    SNAPSHOTTER,
    find_disabled_cri,
    find_faults,
    merge,
    parse_release,
    patterns_in_directory,
)
from nodeagent.host.containerd_config import ContainerdFiles, find_containerd_files, read_containerd_config
from tests.support.containerd import Containerd, ContainerdError
from tests.support.containerd_trees import MAIN, TREES, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.model.node import ContainerdConfig, ContainerdLine

pytestmark = pytest.mark.real

OTHER = {"true": "false", "false": "true"}


@pytest.fixture(scope="module")
def release(containerd: Containerd) -> tuple[int, int, int]:
    release = parse_release(str(containerd.pods().call("Version")["runtime_version"]))
    assert release is not None
    return release


def values(dumped: str) -> tuple[object, ...]:
    """Return sandbox image, snapshotter and discard_unpacked_layers, an absent value as empty; and disabled plugins."""
    document = tomllib.loads(dumped)
    plugins = document["plugins"]
    disabled = set(document["disabled_plugins"])
    if images := plugins.get("io.containerd.cri.v1.images"):
        image = images.get("pinned_images", {}).get("sandbox", "")
        return image, images.get("snapshotter", ""), images.get("discard_unpacked_layers"), disabled
    cri = plugins.get("io.containerd.grpc.v1.cri", {})
    own = cri.get("containerd", {})
    return cri.get("sandbox_image", ""), own.get("snapshotter", ""), own.get("discard_unpacked_layers"), disabled


def read(main: Path, release: tuple[int, int, int]) -> ContainerdConfig:
    files = ContainerdFiles(str(main), is_named=True)
    config = read_containerd_config(files, patterns_in_directory=patterns_in_directory(release))
    assert config is not None
    return config


@pytest.mark.parametrize("name", TREES)
def test_settings_of_the_plan_are_those_of_containerd(
    containerd: Containerd, release: tuple[int, int, int], tmp_path: Path, name: str
) -> None:
    main = write_tree(tmp_path, TREES[name])
    config = read(main, release)
    faults = [*config.faults, *find_faults(config, release)]
    if faults:
        with pytest.raises(ContainerdError):
            containerd.dump_config(main)
        return
    found = values(containerd.dump_config(main))
    merged = merge(config, release)
    if merged is None:
        pytest.skip("the plan knows no value")
    empty = write_tree(tmp_path / "empty", {MAIN: "version = 2\n"})
    defaults = values(containerd.dump_config(empty))
    lines = [merged.deciding[each] for each in (SANDBOX_IMAGE, SNAPSHOTTER, DISCARD_LAYERS)]
    if not found[3]:
        expected = tuple(
            default if line is None else line.value for line, default in zip(lines, defaults, strict=False)
        )
        assert found[:3] == expected
    for each in merged.ineffective:
        assert changed(containerd, main, each.line) in (found, ()), each
    for line in lines:
        assert line is None or found[3] or changed(containerd, main, line) != found, line


def changed(containerd: Containerd, main: Path, line: ContainerdLine) -> tuple[object, ...]:
    """Return the values after another value was written in a line of the files."""
    path = main.parent / line.path
    before = path.read_text()
    lines = before.split("\n")
    key, _, value = lines[line.number - 1].partition("=")
    if not re.fullmatch(r'\s*("[^"]*"|true|false)\s*', value):
        return ()
    other = OTHER.get(value.strip(), '"changed"')
    lines[line.number - 1] = f"{key}= {other}"
    path.write_text("\n".join(lines))
    try:
        return values(containerd.dump_config(main))
    finally:
        path.write_text(before)


def test_configuration_of_the_running_containerd_is_found(
    containerd: Containerd, release: tuple[int, int, int]
) -> None:
    files = find_containerd_files(str(containerd.socket))
    assert files.main == str(containerd.base / MAIN)
    config = read_containerd_config(files)
    assert config is not None
    merged = merge(config, release)
    assert merged is not None
    line = merged.deciding[SANDBOX_IMAGE]
    assert line is not None
    assert (line.value, config.faults, find_disabled_cri(config)) == (containerd.sandbox_image, (), "")
    assert merged.ineffective == ()
