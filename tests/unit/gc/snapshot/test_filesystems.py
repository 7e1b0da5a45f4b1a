"""Image filesystems of a node, from the runtime's ImageFsInfo and from the directories of snapshotters in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import ObservationError, RuntimeRequestError
from nodeagent.gc.snapshot.images import ImageFilesystemReader
from nodeagent.model.runtime import FsObservation, StorageGraph
from nodeagent.record import replace
from nodeagent.runtime.cri import FilesystemUsage, ImageFsInfo
from tests.unit.builders import filesystem, piece

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nodeagent.gc.snapshot.images import ImageFilesystems

ROOT = "/containerd"
OVERLAY, NATIVE, CONTENT = f"{ROOT}/overlayfs", f"{ROOT}/native", f"{ROOT}/content"
PATHS = {"overlayfs": OVERLAY, "native": NATIVE, "": CONTENT}


class Runtime:
    """A fake runtime that reports these image filesystem paths, or fails."""

    def __init__(self, *paths: str, error: str = "") -> None:
        self.paths, self.error = paths, error

    async def image_fs_info(self) -> ImageFsInfo:
        if self.error:
            raise RuntimeRequestError("ImageFsInfo", "", "INTERNAL", self.error)
        return ImageFsInfo(tuple(FilesystemUsage(path) for path in self.paths))


async def read(
    *reported: str,
    devices: Mapping[str, int],
    in_use: Collection[str] = ("overlayfs", ""),
    paths: Mapping[str, str] = PATHS,
    configured: Collection[str] = (),
    imagefs_path: str = "",
    error: str = "",
) -> ImageFilesystems:
    """Read the image filesystems of a node; ``devices`` maps readable paths to device ids."""

    def reading(path: str) -> FsObservation:
        if path not in devices:
            raise ObservationError(f"{path} does not exist")
        return replace(filesystem(), path=path, device_id=devices[path])

    reader = ImageFilesystemReader(Runtime(*reported, error=error), reading, imagefs_path)  # type: ignore[arg-type]
    found, cause = await reader.reported_paths()
    pieces = tuple(piece(f"p-{store}", snapshotter=store) for store in in_use)
    return await reader.read(found, cause, StorageGraph(pieces, store_paths=paths), configured)


def described(found: ImageFilesystems) -> dict[str, set[str]]:
    return {each.path: set(each.stores) for each in found.several}


async def test_stores_on_one_filesystem_are_a_single_one() -> None:
    devices = {OVERLAY: 1, NATIVE: 1, CONTENT: 1}
    for reported in ((OVERLAY,), (OVERLAY, NATIVE)):
        found = await read(*reported, devices=devices, in_use=("overlayfs", "native", ""))
        assert found.several == ()
        assert found.first is not None
        assert found.first.path == OVERLAY


async def test_snapshotter_on_another_filesystem_is_found_without_report_of_the_runtime() -> None:
    devices = {OVERLAY: 1, NATIVE: 2, CONTENT: 1}
    found = await read(OVERLAY, devices=devices, in_use=("overlayfs", "native", ""))
    assert described(found) == {OVERLAY: {"overlayfs", ""}, NATIVE: {"native"}}
    assert found.first is not None
    assert found.first.path == OVERLAY


async def test_unused_snapshotter_does_not_count_unless_configured_for_a_handler() -> None:
    devices = {OVERLAY: 1, NATIVE: 2, CONTENT: 1}
    assert (await read(OVERLAY, devices=devices)).several == ()
    assert described(await read(OVERLAY, devices=devices, configured=["native"])) == {
        OVERLAY: {"overlayfs", ""},
        NATIVE: {"native"},
    }


async def test_content_store_elsewhere_frees_nothing_on_the_image_filesystem() -> None:
    found = await read(OVERLAY, devices={OVERLAY: 1, CONTENT: 3})
    assert described(found) == {OVERLAY: {"overlayfs"}}


async def test_snapshotter_of_unknown_directory_is_on_none_of_several() -> None:
    devices = {OVERLAY: 1, NATIVE: 2, CONTENT: 1}
    found = await read(OVERLAY, NATIVE, devices=devices, in_use=("overlayfs", "stargz", ""))
    assert described(found) == {OVERLAY: {"overlayfs", ""}, NATIVE: set()}
    unreadable = await read(OVERLAY, devices={OVERLAY: 1, CONTENT: 1}, in_use=("overlayfs", "native", ""))
    assert described(unreadable) == {OVERLAY: {"overlayfs", ""}}


async def test_reported_filesystem_that_cannot_be_read_leaves_the_others() -> None:
    found = await read(OVERLAY, NATIVE, devices={NATIVE: 2, CONTENT: 2}, in_use=("overlayfs", "native", ""))
    assert found.first is None
    assert found.error == f"{OVERLAY} does not exist"
    assert [(each.path, each.error) for each in found.several] == [
        (OVERLAY, f"{OVERLAY} does not exist"),
        (NATIVE, ""),
    ]


@pytest.mark.parametrize("in_use", [("overlayfs", ""), ("overlayfs", "native", "")])
async def test_configured_path_is_the_only_image_filesystem(in_use: tuple[str, ...]) -> None:
    devices = {OVERLAY: 1, NATIVE: 2, CONTENT: 1, "/data": 9}
    found = await read(OVERLAY, NATIVE, devices=devices, in_use=in_use, imagefs_path="/data")
    assert found.several == ()
    assert found.first is not None
    assert found.first.path == "/data"


async def test_missing_report_is_an_error() -> None:
    found = await read(devices={})
    assert (found.first, found.several) == (None, ())
    assert "ImageFsInfo is empty" in found.error
    assert "broken" in (await read(devices={}, error="broken")).error
