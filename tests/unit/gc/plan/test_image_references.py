"""Resolution of image references to listed images."""

from __future__ import annotations

import pytest

from nodeagent.gc.plan.image_users import ImageIndex, is_named_like_pause, normalise, repository_of
from nodeagent.model.runtime import Image

HEX_A, HEX_B = "aa11" + "0" * 60, "aa22" + "0" * 60
DIGEST = "sha256:" + "d" * 64
IMAGES = (
    Image(
        f"sha256:{HEX_A}", ("docker.io/library/nginx:latest", "reg:5000/team/app:1"), (f"reg:5000/team/app@{DIGEST}",)
    ),
    Image(f"sha256:{HEX_B}", ("docker.io/library/redis:7",), (f"mirror.example/app@{DIGEST}",)),
    Image("bb33" + "0" * 60, ("busybox:1",)),
)
A, B, BARE = (each.id for each in IMAGES)


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        pytest.param(A, {A}, id="full id"),
        pytest.param(HEX_A, {A}, id="id without sha256"),
        pytest.param(f"sha256:{BARE}", {BARE}, id="id with sha256 where the runtime lists it without"),
        pytest.param("docker.io/library/nginx:latest", {A}, id="full name"),
        pytest.param("nginx", {A}, id="short name resolves to latest on Docker Hub"),
        pytest.param("library/nginx", {A}, id="name without registry"),
        pytest.param("index.docker.io/library/nginx:latest", {A}, id="Docker Hub's other name"),
        pytest.param("docker.io/nginx:latest", {A}, id="Docker Hub without library"),
        pytest.param("redis", set(), id="tag latest does not match tag 7"),
        pytest.param("redis:7", {B}, id="short name with tag"),
        pytest.param("docker.io/library/busybox:1", {BARE}, id="listed in short form"),
        pytest.param("reg:5000/team/app:1", {A}, id="registry with port"),
        pytest.param("reg:5000/team/app", set(), id="a port is not a tag"),
        pytest.param(f"other.example/x@{DIGEST}", {A, B}, id="digest matches under any name"),
        pytest.param(DIGEST, {A, B}, id="digest alone"),
        pytest.param(f"reg:5000/team/app:1@sha256:{'e' * 64}", {A}, id="unknown digest falls back to the tag"),
        pytest.param(f"x@{A}", {A}, id="digest that is an id"),
        pytest.param("aa11", {A}, id="unambiguous short id"),
        pytest.param("sha256:aa11", {A}, id="short id with sha256"),
        pytest.param("aa", {A, B}, id="an ambiguous short id resolves to all matching images"),
        pytest.param("cc", set(), id="short id without a matching image"),
        pytest.param("", set(), id="empty"),
        pytest.param("sha256:", set(), id="empty id"),
    ],
)
def test_reference_resolves_to_every_image_it_may_mean(reference: str, found: set[str]) -> None:
    index = ImageIndex(IMAGES)
    assert set(index.resolve(reference)) == found
    assert index.resolve(reference) == index.resolve(reference)


def test_tag_of_two_images_resolves_to_both() -> None:
    index = ImageIndex((Image("1", ("a.b/c:1",)), Image("2", ("a.b/c:1",))))
    assert index.resolve("a.b/c:1") == ("1", "2")


@pytest.mark.parametrize(
    ("reference", "full"),
    [
        ("nginx", "docker.io/library/nginx:latest"),
        ("nginx:1", "docker.io/library/nginx:1"),
        ("team/app", "docker.io/team/app:latest"),
        ("localhost/app", "localhost/app:latest"),
        ("reg:5000/app", "reg:5000/app:latest"),
        ("quay.io/a/b@sha256:1", "quay.io/a/b@sha256:1"),
        ("docker.io/nginx", "docker.io/library/nginx:latest"),
    ],
)
def test_reference_is_normalised_with_registry_and_tag(reference: str, full: str) -> None:
    assert normalise(reference) == full
    assert normalise(full) == full


@pytest.mark.parametrize(
    ("reference", "repository"),
    [
        ("a.b/c:1", "a.b/c"),
        ("a.b/c", "a.b/c"),
        ("a.b:5000/c", "a.b:5000/c"),
        ("a.b:5000/c:1", "a.b:5000/c"),
        ("a.b/c@sha256:1", "a.b/c"),
        ("a.b/c:1@sha256:1", "a.b/c"),
        ("c", "c"),
    ],
)
def test_repository_excludes_tag_and_digest(reference: str, repository: str) -> None:
    assert repository_of(reference) == repository


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("registry.k8s.io/pause:3.9", True),
        ("rancher/mirrored-pause:3.6", True),
        ("gcr.io/pause-amd64:3.1", True),
        ("eks/pause@sha256:1", True),
        ("example.com/pauser:1", False),
        ("pause.example/app:1", False),
        ("a.b/app:pause", False),
    ],
)
def test_only_pause_repositories_are_named_like_a_pause_image(reference: str, expected: bool) -> None:
    assert is_named_like_pause(reference) is expected
