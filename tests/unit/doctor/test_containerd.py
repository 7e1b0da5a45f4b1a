"""Findings of ``nodeagent doctor`` on containerd's files; the integration tests compare the rules with containerd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.doctor.plan.containerd import (
    check_containerd_config,
    find_disabled_cri,
    find_faults,
    parse_release,
    patterns_in_directory,
)
from nodeagent.doctor.plan.node import Finding, Grade
from nodeagent.host.containerd_config import ContainerdFiles, read_containerd_config
from nodeagent.record import replace
from tests.support.containerd_trees import MAIN, OLD, TREES, V2, imports, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.model.node import ContainerdConfig

OLD_RELEASE, NEW_RELEASE = "v1.7.24", "2.1.9+unknown"
NOT_CONVERTED = "has no effect: containerd 2 does not convert a configuration without version = 2"
REPLACED = 'has no effect: /c/b.toml:2, read later, replaces the whole table [plugins."io.containerd.grpc.v1.cri"]'
NEW_TABLE = '[plugins."io.containerd.cri.v1.images"'

OLD_DEFAULTS = f"""\
{OLD}]
sandbox_image = "a/b:1"
{OLD}.containerd]
snapshotter = "overlayfs"
discard_unpacked_layers = false
"""


def read(root: Path, files: dict[str, str]) -> ContainerdConfig:
    write_tree(root / "c", files, "/c")
    config = read_containerd_config(ContainerdFiles(f"/c/{MAIN}", root=root))
    assert config is not None
    return config


def found(config: ContainerdConfig | None, version: str, **reported: str) -> list[Finding]:
    values = {"sandbox_image": None, "snapshotter": None, **reported}
    return list(check_containerd_config(config, version, **values))


@pytest.mark.parametrize(
    ("tree", "version", "settings", "lines"),
    [
        ("empty", OLD_RELEASE, "sandbox image: default, snapshotter: default, discard_unpacked_layers: default", []),
        (
            "version-1",
            OLD_RELEASE,
            (
                "sandbox image a/b:1 (/c/config.toml:2), snapshotter native (/c/config.toml:5), "
                "discard_unpacked_layers true (/c/config.toml:6)"
            ),
            [],
        ),
        (
            "version-1",
            NEW_RELEASE,
            "sandbox image: default, snapshotter: default, discard_unpacked_layers: default",
            [
                (
                    f"/c/config.toml:2: sandbox_image = a/b:1 {NOT_CONVERTED}",
                    f"set sandbox below {NEW_TABLE}.pinned_images]",
                ),
                (f"/c/config.toml:5: snapshotter = native {NOT_CONVERTED}", f"set snapshotter below {NEW_TABLE}]"),
                (
                    f"/c/config.toml:6: discard_unpacked_layers = true {NOT_CONVERTED}",
                    "set discard_unpacked_layers below",
                ),
            ],
        ),
        (
            "import-replaces-table",
            OLD_RELEASE,
            "sandbox image: default, snapshotter: default, discard_unpacked_layers: default",
            [
                (f"/c/config.toml:4: sandbox_image = a/b:1 {REPLACED}", f"repeat the line below {OLD}] in /c/b.toml"),
                (f"/c/config.toml:7: snapshotter = native {REPLACED}", f"repeat the line below {OLD}.containerd]"),
                (f"/c/config.toml:8: discard_unpacked_layers = true {REPLACED}", "repeat the line below"),
            ],
        ),
        (
            "import-of-one-new-value",
            NEW_RELEASE,
            (
                "sandbox image a/b:3 (/c/b.toml:3, overrides /c/config.toml:7), snapshotter native (/c/config.toml:4), "
                "discard_unpacked_layers true (/c/config.toml:5)"
            ),
            [],
        ),
        (
            "version-3-old-key",
            NEW_RELEASE,
            "sandbox image: default, snapshotter: default, discard_unpacked_layers: default",
            [
                ("/c/config.toml:3: sandbox_image = a/b:1 has no effect: unknown key", "write sandbox below"),
                (
                    "/c/config.toml:5: snapshotter = native has no effect: wrong table",
                    f"write snapshotter below {NEW_TABLE}]",
                ),
            ],
        ),
        (
            "imports-in-a-table",
            OLD_RELEASE,
            (
                "sandbox image a/b:1 (/c/config.toml:3), snapshotter native (/c/config.toml:6), "
                "discard_unpacked_layers true (/c/config.toml:7)"
            ),
            [
                (
                    (
                        f"/c/config.toml:8: imports = ['b.toml'] has no effect: in the table {OLD}.containerd], "
                        "not at the top of the file"
                    ),
                    "move it above the first table",
                ),
                (
                    "/c/config.toml:9: disabled_plugins = ['io.containerd.grpc.v1.cri'] has no effect: in the table",
                    "move it above the first table",
                ),
            ],
        ),
        (
            "pattern-without-match",
            OLD_RELEASE,
            (
                "sandbox image a/b:1 (/c/config.toml:4), snapshotter native (/c/config.toml:7), "
                "discard_unpacked_layers true (/c/config.toml:8)"
            ),
            [
                (
                    "/c/conf.d/a.conf:2: sandbox_image = a has no effect: no import names the file",
                    'add "/c/conf.d/a.conf" to imports at the top of /c/config.toml',
                )
            ],
        ),
        (
            "handlers",
            OLD_RELEASE,
            "sandbox image: default, snapshotter: default, discard_unpacked_layers: default",
            [],
        ),
    ],
)
def test_effective_settings_and_lines_without_effect_are_reported(
    tmp_path: Path, tree: str, version: str, settings: str, lines: list[tuple[str, str]]
) -> None:
    first, *others = found(read(tmp_path, TREES[tree]), version)
    assert (first.check, first.verdict, first.evidence) == ("containerd-config", Grade.OK, settings)
    assert {(each.check, each.verdict) for each in others} <= {("containerd-files", Grade.WARNING)}
    assert len(others) == len(lines)
    for other, (evidence, fix) in zip(others, lines, strict=True):
        assert other.evidence.startswith(evidence)
        assert other.fix.startswith(fix)
        assert other.fix.endswith("restart containerd")


FAULTS = {
    "missing-import": (imports("a") + V2, OLD_RELEASE, "/c/config.toml:1: cannot read /c/a: No such file or directory"),
    "version": ("version = 3", OLD_RELEASE, "/c/config.toml:1: containerd 1.7 does not support version = 3"),
    "new-version": ("version = 4", NEW_RELEASE, "/c/config.toml:1: containerd 2.1 does not support version = 4"),
    "text": ("version = '2'", NEW_RELEASE, "/c/config.toml:1: version is no whole number"),
    "short-name": (
        V2 + "[plugins.cri]\na=1\n[plugins.cri.b]",
        OLD_RELEASE,
        "/c/config.toml:2: containerd 1 with version = 2 does not accept [plugins.cri]",
    ),
    "disabled-short-name": (
        V2 + "disabled_plugins = ['x.y', 'cri']",
        NEW_RELEASE,
        "/c/config.toml:2: disabled_plugins has cri",
    ),
    "type": (
        V2 + f"{OLD}]\nsandbox_image = [1]",
        OLD_RELEASE,
        "/c/config.toml:3: sandbox_image = [1] has the wrong type",
    ),
    "type-of-bool": (
        V2 + f"{OLD}.containerd]\ndiscard_unpacked_layers = 1",
        OLD_RELEASE,
        "/c/config.toml:3: discard_unpacked_layers = 1 has the wrong type",
    ),
}


@pytest.mark.parametrize(("text", "version", "evidence"), FAULTS.values(), ids=FAULTS)
def test_fault_is_the_only_finding(tmp_path: Path, text: str, version: str, evidence: str) -> None:
    (fault,) = found(read(tmp_path, {MAIN: text + f"\n{OLD}.x]\nsandbox_images = 'a'"}), version)
    assert (fault.check, fault.verdict) == ("containerd-config", Grade.WARNING)
    assert fault.evidence.startswith(evidence)
    assert "does not start again" in fault.fix


@pytest.mark.parametrize("version", ["1.5.9", "v2.3.0", "v10.1.1", "1.6", "", "latest"])
def test_settings_of_a_release_with_unknown_rules_are_unknown(tmp_path: Path, version: str) -> None:
    (finding,) = found(read(tmp_path, TREES["version-1"]), version)
    assert (finding.verdict, version in finding.evidence, "not known" in finding.evidence) == (
        Grade.SKIPPED,
        True,
        True,
    )


@pytest.mark.parametrize(
    "text",
    ["Version = 2", f"{NEW_TABLE}]\nSnapshotter = 'native'", f"{OLD}]\nsandbox_image = 'a'\n[plugins.cri]\na = 1"],
    ids=["case-of-a-top-key", "case-of-a-plugin-key", "two-names-in-version-1"],
)
def test_settings_of_a_file_that_containerd_2_reads_in_another_way_are_unknown(tmp_path: Path, text: str) -> None:
    config = read(tmp_path, {MAIN: text})
    (finding,) = found(config, NEW_RELEASE)
    assert finding.verdict is Grade.SKIPPED
    assert found(config, OLD_RELEASE)[0].verdict is Grade.OK


def test_wrong_type_in_a_line_without_effect_is_no_fault(tmp_path: Path) -> None:
    (first, second) = found(read(tmp_path, {MAIN: f"version = 3\n{OLD}]\nsandbox_image = 7"}), NEW_RELEASE)
    assert (first.verdict, second.evidence.split(":")[2]) == (Grade.OK, " sandbox_image = 7 has no effect")


def test_settings_without_access_to_the_files_are_unknown() -> None:
    (finding,) = found(None, OLD_RELEASE)
    assert finding == Finding.skipped("containerd-config", "files of containerd not found: no access to its process")


def test_settings_that_the_running_containerd_reports_decide(tmp_path: Path) -> None:
    config = read(tmp_path, TREES["version-2"])
    same = found(config, OLD_RELEASE, sandbox_image="a/b:1", snapshotter="native")
    assert [each.verdict for each in same] == [Grade.OK]
    (changed,) = found(config, OLD_RELEASE, sandbox_image="a/b:1", snapshotter="overlayfs")
    assert changed == Finding.warning(
        "containerd-config",
        "/c/config.toml:6 sets snapshotter native, but containerd uses overlayfs; in the files: sandbox image a/b:1 "
        "(/c/config.toml:3), discard_unpacked_layers true (/c/config.toml:7)",
        "restart containerd: it reads its files at its start",
    )
    (default,) = found(read(tmp_path / "b", {MAIN: V2}), OLD_RELEASE, sandbox_image="a/b:1", snapshotter="native")
    assert default.evidence == (
        "sandbox image a/b:1 (set by no file), snapshotter native (set by no file), discard_unpacked_layers: default"
    )


def test_line_without_effect_with_the_value_in_use_is_no_warning(tmp_path: Path) -> None:
    files = {MAIN: imports("b.toml") + V2 + OLD_DEFAULTS, "b.toml": V2 + f"{OLD}]\nmax_concurrent_downloads = 4"}
    config = read(tmp_path, files)
    used = {"sandbox_image": "a/b:1", "snapshotter": "overlayfs"}
    assert len(found(config, OLD_RELEASE, **used)) == 1
    assert len(found(replace(config, changed=("/c/b.toml",)), OLD_RELEASE, **used)) == 4
    assert len(found(config, OLD_RELEASE, **(used | {"snapshotter": "native"}))) == 2


def test_settings_in_a_file_that_was_changed_after_the_start_are_a_warning(tmp_path: Path) -> None:
    config = replace(read(tmp_path, TREES["version-3"]), changed=("/c/config.toml",))
    (finding,) = found(config, NEW_RELEASE)
    assert finding.verdict is Grade.WARNING
    assert finding.evidence.startswith(
        "/c/config.toml was changed after the start of containerd, which can use other values; in the files: sandbox "
        "image a/b:1 (/c/config.toml:6), "
    )


DISABLED_CRI = {
    "docker": ({MAIN: '# c\ndisabled_plugins = ["cri"]\n'}, f"/c/{MAIN}:2"),
    "several-lines": ({MAIN: '\ndisabled_plugins = [\n  "a",\n  "io.containerd.grpc.v1.cri",\n]\n'}, f"/c/{MAIN}:2"),
    "containerd-2": ({MAIN: '"disabled_plugins" = ["io.containerd.cri.v1.runtime"]\n'}, f"/c/{MAIN}:1"),
    "import": (
        {MAIN: imports("/c/conf.d/*.toml"), "conf.d/a.toml": "disabled_plugins=['cri']"},
        "/c/conf.d/a.toml:1",
    ),
    "other-plugins": ({MAIN: 'disabled_plugins = ["btrfs", 7]\n'}, ""),
    "in-a-table": ({MAIN: '[grpc]\ndisabled_plugins = ["cri"]\n'}, ""),
    "comment": ({MAIN: '#disabled_plugins = ["cri"]\n'}, ""),
    "invalid": ({MAIN: 'disabled_plugins = ["cri"\n'}, ""),
    "no-list": ({MAIN: 'disabled_plugins = "cri"\n'}, ""),
}


def test_settings_are_not_known_for_files_that_only_containerd_can_read(tmp_path: Path) -> None:
    config = read(tmp_path, {MAIN: "imports = ['[a]*']\n"})
    (finding,) = found(config, OLD_RELEASE)
    assert (finding.verdict, finding.fix) == (Grade.SKIPPED, "")
    assert finding.evidence == f"settings not known: /c/{MAIN}:1: pattern [a]* is not understood"


@pytest.mark.parametrize(("files", "place"), DISABLED_CRI.values(), ids=DISABLED_CRI)
def test_line_that_disables_cri_is_found(tmp_path: Path, files: dict[str, str], place: str) -> None:
    assert find_disabled_cri(read(tmp_path, files)) == place


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.6.20~ds1", True), ("v1.6.29", False), ("v1.7.15", True), ("v1.7.16", False), ("2.0.0", False), ("x", False)],
)
def test_relative_patterns_are_relative_to_the_working_directory_in_old_releases(
    version: str, *, expected: bool
) -> None:
    assert patterns_in_directory(parse_release(version)) is expected


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("version", ["1.6.20", "1.7.24", "2.0.0", "2.2.0"])
def test_every_tree_has_faults_or_the_settings_first(tmp_path: Path, tree: str, version: str) -> None:
    config = read(tmp_path, TREES[tree])
    release = parse_release(version)
    assert release is not None
    faults = [*config.faults, *find_faults(config, release)]
    first, *_ = found(config, version)
    assert (first.verdict is Grade.OK) is not bool(faults)
