"""Images without a tag, removed first, and images kept by their labels, on a real containerd."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import images
from tests.support.command import nodeagent
from tests.support.containerd import LoopFs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.conftest import ContainerdFactory
    from tests.support.containerd import Containerd

pytestmark = pytest.mark.real

SIZE_BYTES = 8 << 20
APP = "registry.example.com/app"


def add(containerd: Containerd, name: str, *, seed: str = "", labels: tuple[tuple[str, str], ...] = ()) -> str:
    """Import an image as pulled, with the tag ``v1``; return its id."""
    described = images.image(f"{APP}/{name}:v1", layers=[images.blob(name + seed, SIZE_BYTES)])
    archive = images.write_oci(containerd.base / "image.tar", replace(described, labels=labels))
    containerd.import_images(archive, pulled=True)
    return archive.images[0].config_digest


@pytest.fixture
def agent(containerd_factory: ContainerdFactory) -> Callable[..., tuple[Containerd, Callable[..., Any]]]:
    """Return a function that starts containerd and returns it with a runner of commands with settings."""

    def started(imagefs: LoopFs | None = None) -> tuple[Containerd, Callable[..., Any]]:
        containerd = containerd_factory(imagefs=imagefs) if imagefs else containerd_factory()
        config = containerd.base / "nodeagent.toml"

        def run(*command: str, settings: str = "", api: str = "auto", codes: tuple[int, ...] = (0, 3)) -> Any:
            config.write_text(
                f'role = "standalone"\n[runtime]\nendpoint = "unix://{containerd.socket}"\ncontainerd_api = "{api}"\n'
                f'[state]\ndirectory = "{containerd.base}/agent-state"\n'
                f'[image_gc]\nminimum_age = "0s"\nundo_window = "0s"\n{settings}'
            )
            ended = nodeagent(*command, "-o", "json", "--config", str(config))
            assert ended.returncode in codes, ended.stderr
            return json.loads(ended.stdout)

        return containerd, run

    return started


def decided(document: Any) -> dict[str, tuple[str, str]]:
    """Return verdict and reason code of each image by id, from ``nodeagent images``."""
    return {each["id"]: (each["verdict"], each["reason"]["code"]) for each in document["images"]}


def test_image_that_lost_its_tag_is_removed_before_images_with_a_tag(agent: Callable[..., Any]) -> None:
    containerd, run = agent(LoopFs(160))
    old = add(containerd, "old")
    lost = add(containerd, "moved")
    new = add(containerd, "moved", seed="2")
    settings = 'irreplaceable = "ignore"\n'
    containerd.fill(20 << 20)  # the removal of one image suffices for the default low threshold
    default, first = (decided(run("images", settings=settings + extra)) for extra in ("", "untagged_first = true\n"))
    assert default[old] == ("remove", "least-recently-used")
    assert first[lost] == ("remove", "untagged-first")
    assert (first[old][0], first[new][0]) == ("keep", "keep")
    report = run("gc", "images", "--yes", settings=settings + "untagged_first = true\n")
    done = [each["id"] for each in report["results"] if each["outcome"] == "done"]
    assert done[0] == lost
    left = decided(run("images"))
    assert lost not in left
    assert new in left


def test_images_are_kept_by_labels_of_their_config_and_of_their_names(agent: Callable[..., Any]) -> None:
    containerd, run = agent()
    of_config = add(containerd, "config", labels=(("team", "db"), ("text", "a=b\u001b[31m")))
    other = add(containerd, "other", labels=(("team", "web"),))
    of_name, plain = add(containerd, "name"), add(containerd, "plain")
    containerd.ctr("images", "label", f"{APP}/name:v1", "team=db")
    rule = '[protect]\nimages = ["label:team=db"]\n'
    for api, kept in (("auto", {of_config, of_name}), ("off", {of_config})):
        found = decided(run("images", settings=rule, api=api))
        assert {each for each in (of_config, other, of_name, plain) if found[each][1] == "protected"} == kept
        assert not any(code == "labels-unknown" for _, code in found.values())
    some = decided(run("images", settings='[protect]\nimages = ["label:text"]\n'))
    assert {each for each, (_, code) in some.items() if code == "protected"} == {of_config}
    selected = run("gc", "images", "--only", "label:team", "--yes", settings=rule)
    assert {each["id"] for each in selected["results"] if each["outcome"] == "done"} == {other}
    assert {of_config, of_name, plain} <= decided(run("images")).keys()


def test_image_without_its_config_is_kept_while_a_rule_names_a_label(agent: Callable[..., Any]) -> None:
    containerd, run = agent()
    broken, plain = add(containerd, "broken"), add(containerd, "plain")
    containerd.ctr("content", "rm", broken)
    settings = '[protect]\nimages = ["label:team"]\n'
    found = decided(run("images", settings=settings))
    assert found[plain][1] != "labels-unknown"
    if broken in found:  # containerd 2 no longer lists the image
        assert found[broken] == ("keep", "labels-unknown")
    report = run("gc", "images", "--only", plain, "--yes", settings=settings)
    assert {each["id"] for each in report["results"] if each["outcome"] == "done"} == {plain}
