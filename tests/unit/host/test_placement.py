"""Placement and removal of files outside the prefix; foreign files are never overwritten or removed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.errors import InstallError
from nodeagent.host.installation import (
    BY_HAND,
    check_foreign,
    find_pages,
    is_page,
    is_recognised,
    known_places,
    other_prefix,
)
from nodeagent.host.manifest import fingerprint
from nodeagent.host.placement import (
    Change,
    Part,
    Step,
    below,
    carry_out,
    check_parents,
    plan_placement,
    plan_removal,
    remove,
    save_copy,
    saved_versions,
)
from nodeagent.host.prefix import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection

UNIT = BY_HAND.units / "nodeagent.service"
PAGE = BY_HAND.manual / "man1/nodeagent.1"
NEW, LINK = Part(UNIT, "new"), Part(BY_HAND.command, link="/opt/nodeagent/bin/nodeagent")


@pytest.mark.parametrize(
    ("part", "present", "recorded", "expected"),
    [
        (NEW, None, (), Step(Change.NEW)),
        (NEW, None, ("old",), Step(Change.NEW)),
        (NEW, NEW.fingerprint, (), Step(Change.SAME)),
        (NEW, "old", ("old",), Step(Change.REPLACED)),
        (NEW, "old", ("old", NEW.fingerprint), Step(Change.REPLACED)),
        (NEW, "old", (), Step(Change.REPLACED, save=True, reason="the former version may have been edited")),
        (Part(PAGE, "new"), "old", (), Step(Change.REPLACED)),
        (NEW, "edited", (NEW.fingerprint,), Step(Change.KEPT, reason="edited since it was installed")),
        (
            NEW,
            "edited",
            ("old",),
            Step(Change.KEPT, beside=True, reason="edited since it was installed; the new version is beside it"),
        ),
        (LINK, "link:/opt/mine", ("link:/opt/old",), Step(Change.KEPT, reason="edited since it was installed")),
    ],
)
def test_change_of_a_file_follows_from_its_fingerprints(
    part: Part, present: str | None, recorded: Collection[str], expected: Step
) -> None:
    assert plan_placement(part, present, recorded) == expected


@pytest.mark.parametrize(
    ("path", "present", "recorded", "recognised", "purge", "expected"),
    [
        (UNIT, None, ("a",), True, False, Step(Change.SAME)),
        (UNIT, "a", ("a",), False, False, Step(Change.REMOVED)),
        (UNIT, "b", (), True, False, Step(Change.REMOVED)),
        (UNIT, "b", (), False, True, Step(Change.KEPT, reason="not installed by nodeagent")),
        (UNIT, "b", ("a",), True, False, Step(Change.REMOVED, save=True, reason="edited since it was installed")),
        (UNIT, "b", ("a",), True, True, Step(Change.REMOVED, reason="edited since it was installed")),
        (PAGE, "b", ("a",), True, True, Step(Change.KEPT, reason="edited since it was installed")),
    ],
)
def test_removal_of_a_file_follows_from_its_fingerprints(  # noqa: PLR0917 - parametrized
    path: Path, present: str | None, recorded: Collection[str], recognised: bool, purge: bool, expected: Step
) -> None:
    assert plan_removal(path, present, recorded, recognised=recognised, purge=purge) == expected


CONTENT = st.sampled_from(["a", "b", "other", NEW.fingerprint])


@given(CONTENT, st.sets(CONTENT))
def test_unrecorded_content_is_never_overwritten_without_a_copy(present: str, recorded: set[str]) -> None:
    step = plan_placement(NEW, present, recorded)
    if present not in recorded and step.change is Change.REPLACED:
        assert step.save


@given(CONTENT, st.sets(CONTENT), st.booleans(), st.booleans())
def test_foreign_content_is_never_removed(present: str, recorded: set[str], recognised: bool, purge: bool) -> None:
    for path in (UNIT, PAGE):
        step = plan_removal(path, present, recorded, recognised=recognised, purge=purge)
        if step.change is Change.REMOVED and present not in recorded and not step.save:
            assert (recognised and not recorded) or (purge and path == UNIT)


def test_former_content_is_saved_under_a_free_name(tmp_path: Path) -> None:
    path = below(tmp_path, UNIT)
    for number, text in enumerate(("first", "second", "third")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
        carry_out(Part(UNIT, "new"), Step(Change.REPLACED, save=True), tmp_path)
        assert path.read_text() == "new"
        assert len(saved_versions(UNIT, tmp_path)) == number + 1
    (path.parent / f"{path.name}.nodeagent-old.bak").write_text("mine")
    found = {below(tmp_path, each).read_text() for each in saved_versions(UNIT, tmp_path)}
    assert found == {"first", "second", "third"}


def test_link_is_saved_as_a_link(tmp_path: Path) -> None:
    path = tmp_path / "unit"
    path.symlink_to("/dev/null")
    assert str(save_copy(path).readlink()) == "/dev/null"


def test_new_version_is_placed_beside_the_edited_file(tmp_path: Path) -> None:
    path = below(tmp_path, UNIT)
    path.parent.mkdir(parents=True)
    path.write_text("edited")
    carry_out(NEW, Step(Change.KEPT, beside=True), tmp_path)
    assert path.read_text() == "edited"
    assert path.with_name("nodeagent.service.nodeagent-dist").read_text() == "new"


def test_removal_keeps_directories_with_other_files(tmp_path: Path) -> None:
    for name in ("man1/nodeagent.1", "man1/mine.1", "man5/nodeagent.toml.5"):
        place = below(tmp_path, BY_HAND.manual / name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("x")
    remove(PAGE, tmp_path)
    remove(BY_HAND.manual / "man5/nodeagent.toml.5", tmp_path)
    manual = below(tmp_path, BY_HAND.manual)
    assert [str(each.relative_to(manual)) for each in manual.rglob("*")] == ["man1", "man1/mine.1"]


def test_directory_that_resolves_outside_the_root_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (tmp_path / "outside").mkdir()
    (root / "etc").mkdir(parents=True)
    (root / "etc/systemd").symlink_to(tmp_path / "outside")
    with pytest.raises(InstallError, match="resolves outside"):
        check_parents(root, UNIT)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("man1/nodeagent.1", True),
        ("man1/nodeagent-gc.1", True),
        ("man5/nodeagent.toml.5", True),
        ("man7/nodeagent-beside-a-kubelet.7", True),
        ("man7/nodeagent.7", False),
        ("man1/nodeagent_exporter.1", False),
        ("man1/nodeagent.1.gz", False),
        ("man1/nodeagentd.1", False),
        ("man8/nodeagent.1", False),
    ],
)
def test_manual_page_is_recognised_by_its_complete_name(name: str, expected: bool) -> None:
    assert is_page(BY_HAND, BY_HAND.manual / name) is expected


def test_manual_page_of_another_program_is_not_recognised(tmp_path: Path) -> None:
    texts = {
        "nodeagent-exporter.1": '.TH NODEAGENT-EXPORTER 1 "" "nodeagent-exporter 2.0" "x"\n',
        "nodeagent-former.1": '.TH NODEAGENT\\-FORMER 1 "" "nodeagent 0.0.9" "x"\n',
    }
    directory = below(tmp_path, BY_HAND.manual / "man1")
    directory.mkdir(parents=True)
    for name, text in texts.items():
        (directory / name).write_text(text)
    recognised = [
        path.name for path in find_pages(BY_HAND, tmp_path) if is_recognised(BY_HAND, path, DEFAULT_PREFIX, tmp_path)
    ]
    assert recognised == ["nodeagent-former.1"]


def test_foreign_files_are_refused_unless_recorded(tmp_path: Path) -> None:
    for path in known_places(BY_HAND):
        place = below(tmp_path, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("foreign")
        with pytest.raises(InstallError, match=f"{path}: exists, not installed by this installation; move it away"):
            check_foreign(BY_HAND, [path], DEFAULT_PREFIX, tmp_path, {})
        check_foreign(BY_HAND, [path], DEFAULT_PREFIX, tmp_path, {path: ()})


@pytest.mark.parametrize("kind", ["directory", "link", "undecodable"])
def test_special_files_are_foreign(tmp_path: Path, kind: str) -> None:
    for path in known_places(BY_HAND):
        place = below(tmp_path, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "directory":
            place.mkdir()
        elif kind == "link":
            place.symlink_to("/dev/null")
        else:
            place.write_bytes(b"\xff\xfe")
        with pytest.raises(InstallError):
            check_foreign(BY_HAND, [path], DEFAULT_PREFIX, tmp_path, {})


def test_prefix_of_another_installation_is_read_from_its_unit(tmp_path: Path) -> None:
    place = below(tmp_path, UNIT)
    place.parent.mkdir(parents=True)
    place.write_text("[Service]\nExecStart=/srv/agent/bin/nodeagent run --config x\n")
    assert other_prefix(BY_HAND, DEFAULT_PREFIX, tmp_path) == Path("/srv/agent")
    assert other_prefix(BY_HAND, Path("/srv/agent"), tmp_path) is None
    with pytest.raises(InstallError, match=r"nodeagent uninstall --prefix /srv/agent"):
        check_foreign(BY_HAND, [UNIT], DEFAULT_PREFIX, tmp_path, {})
    assert fingerprint(place) is not None
