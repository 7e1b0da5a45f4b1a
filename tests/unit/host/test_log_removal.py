"""Listing and removal of pod logs, confined to the log roots."""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from nodeagent.host import pod_logs as log_removal, pod_logs as podlogs
from nodeagent.host.pod_logs import RemovalRefusedError, open_below

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.host.pod_logs import Place

UID = "0a1b2c3d-1111-2222-3333-444455556666"
NAME = f"shop_web_{UID}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pods = tmp_path / "pods"
    (pods / NAME / "web").mkdir(parents=True)
    for name in ("0.log", "0.log.20260101-000000.gz", "1.log", "10.log"):
        (pods / NAME / "web" / name).write_text("line\n")
    return pods


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    target = tmp_path / "victim"
    target.mkdir()
    (target / "precious").write_text("kept")
    return target


@pytest.mark.difference("log-directory-name")
@pytest.mark.parametrize(
    ("name", "uid"),
    [
        (NAME, UID),
        (UID, UID),
        ("shop_web", ""),
        ("lost+found", ""),
        ("a_b_c_d", ""),
        ("__x", ""),
        ("kube-system_etcd-n1_3f2a9c3f2a9c3f2a9c3f2a9c3f2a9c3f", "3f2a9c3f2a9c3f2a9c3f2a9c3f2a9c3f"),
    ],
)
def test_pod_uid_is_parsed_from_the_directory_name(name: str, uid: str) -> None:
    assert podlogs.pod_uid(name) == uid


@pytest.mark.parametrize(
    ("name", "container_id"),
    [
        ("web_shop_web-0123abcdef.log", "0123abcdef"),
        ("web_shop_web-0123a.log", ""),
        ("web_shop_web-nothexadecimal.log", ""),
        ("web_shop_web-0123abcdef", ""),
    ],
)
def test_container_id_is_parsed_from_the_link_name(name: str, container_id: str) -> None:
    assert podlogs.link_container_id(name) == container_id


def test_pod_log_directory_is_removed_with_its_content(root: Path, victim: Path) -> None:
    (root / NAME / "link").symlink_to(victim)
    (root / NAME / "web" / "precious").symlink_to(victim / "precious")
    freed = log_removal.remove_pod_log_directory(root, NAME, UID, podlogs.FAR_FUTURE)
    assert freed.inodes == 8
    assert list(root.iterdir()) == []
    assert (victim / "precious").read_text() == "kept"


@pytest.mark.parametrize("name", ["", ".", "..", "../victim", f"x/{NAME}", "shop_web"])
def test_name_of_another_directory_is_refused(root: Path, name: str) -> None:
    with pytest.raises(RemovalRefusedError):
        log_removal.remove_pod_log_directory(root, name, UID, podlogs.FAR_FUTURE)
    assert (root / NAME / "web" / "1.log").exists()


def test_symlink_instead_of_the_directory_is_refused(root: Path, victim: Path) -> None:
    other = f"shop_other_{UID}"
    (root / other).symlink_to(victim)
    with pytest.raises(RemovalRefusedError):
        log_removal.remove_pod_log_directory(root, other, UID, podlogs.FAR_FUTURE)
    assert (victim / "precious").exists()


def test_only_logs_of_the_container_are_removed(root: Path, victim: Path) -> None:
    log_removal.remove_container_logs(root, root / NAME / "web" / "0.log")
    assert sorted(each.name for each in (root / NAME / "web").iterdir()) == ["1.log", "10.log"]
    (root / NAME / "elsewhere").symlink_to(victim)
    for path in (root / NAME / "elsewhere" / "precious", victim / "precious", root / NAME / ".." / "x" / "y"):
        with pytest.raises(RemovalRefusedError):
            log_removal.remove_container_logs(root, path)
    assert (victim / "precious").exists()


def test_only_links_without_a_target_are_removed(root: Path, tmp_path: Path) -> None:
    links = tmp_path / "containers"
    links.mkdir()
    (links / "web_shop_web-0123abcdef.log").symlink_to(root / NAME / "web" / "1.log")
    (links / "web_shop_web-fedcba9876.log").symlink_to(root / NAME / "web" / "7.log")
    (links / "plain-aaaaaaaa.log").write_text("a file")
    assert [each.container_id for each in podlogs.list_dead_log_links(links)] == ["fedcba9876"]
    assert log_removal.remove_dead_log_link(links, "web_shop_web-0123abcdef.log") is False
    assert log_removal.remove_links_of(links, "fedcba9876") == 1
    with pytest.raises(RemovalRefusedError):
        log_removal.remove_dead_log_link(links, "plain-aaaaaaaa.log")
    assert len(list(links.iterdir())) == 2


@pytest.mark.difference("log-links")
def test_link_to_a_removed_log_directory_is_first_listed_by_the_next_reading(root: Path, tmp_path: Path) -> None:
    links = tmp_path / "containers"
    links.mkdir()
    (links / "web_shop_web-0123abcdef.log").symlink_to(root / NAME / "web" / "1.log")
    assert not podlogs.list_dead_log_links(links)
    log_removal.remove_pod_log_directory(root, NAME, UID, podlogs.FAR_FUTURE)
    assert len(list(links.iterdir())) == 1
    assert [each.container_id for each in podlogs.list_dead_log_links(links)] == ["0123abcdef"]


def test_concurrent_replacement_by_a_symlink_never_redirects_the_removal(
    root: Path, victim: Path, tmp_path: Path
) -> None:
    moved, stop = tmp_path / "moved", threading.Event()
    target = root / NAME / "web"

    def restore() -> None:
        target.parent.mkdir(exist_ok=True)
        if target.is_symlink():
            target.unlink()
        if not moved.exists():
            moved.mkdir()
            (moved / "0.log").write_text("line\n")

    def swap() -> None:
        while not stop.is_set():
            with suppress(OSError):
                target.rename(moved)
                target.symlink_to(victim)
                target.unlink()
                moved.rename(target)
                continue
            with suppress(OSError):
                restore()
                moved.rename(target)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(400):
            try:
                log_removal.remove_pod_log_directory(root, NAME, UID, podlogs.FAR_FUTURE)
            except (RemovalRefusedError, FileNotFoundError):
                continue
    finally:
        stop.set()
        swapper.join()
    assert (victim / "precious").read_text() == "kept"


@pytest.mark.parametrize("opening", [1, 2], ids=["check", "removal"])
def test_directory_replaced_by_a_symlink_before_its_opening_is_refused(
    root: Path, victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opening: int
) -> None:
    target, opened = root / NAME / "web", list[str]()

    def replace_before(parent: int, name: str, place: Place, where: Path) -> int:
        opened.append(name)
        if name == "web" and opened.count("web") == opening:
            target.rename(tmp_path / "moved")
            target.symlink_to(victim)
        return open_below(parent, name, place, where)

    monkeypatch.setattr(log_removal, "open_below", replace_before)
    with pytest.raises(RemovalRefusedError):
        log_removal.remove_pod_log_directory(root, NAME, UID, podlogs.FAR_FUTURE)
    assert opened.count("web") == opening
    assert (victim / "precious").read_text() == "kept"


@pytest.mark.difference("log-mounts")
@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="bind mounts require root")
def test_tree_with_a_mount_is_refused_before_any_removal(root: Path, victim: Path) -> None:
    mounted = root / NAME / "zz"
    mounted.mkdir()
    subprocess.run(["mount", "--bind", str(victim), str(mounted)], check=True)
    try:
        with pytest.raises(RemovalRefusedError, match="mount point"):
            log_removal.remove_pod_log_directory(root, NAME, UID, podlogs.FAR_FUTURE)
        assert (victim / "precious").exists()
        assert len(list((root / NAME / "web").iterdir())) == 4
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@pytest.mark.parametrize("name", [b"ns\xff_pod\x80_" + UID.encode(), b"[x]\x1b[31m\n_web_" + UID.encode()])
def test_directory_with_any_bytes_in_its_name_is_listed_and_removed(root: Path, name: bytes) -> None:
    text = os.fsdecode(name)
    (root / text / "a\udcff").mkdir(parents=True)
    (found,) = (each for each in podlogs.list_pod_log_directories(root) if each.name == text)
    assert found.uid == UID
    log_removal.remove_pod_log_directory(root, found.name, found.uid, podlogs.FAR_FUTURE)
    assert [each.name for each in root.iterdir()] == [NAME]


def test_impossible_log_path_is_refused(root: Path) -> None:
    with pytest.raises(RemovalRefusedError, match="not a container's log"):
        log_removal.remove_container_logs(root, root / NAME / "we\0b" / "0.log")
