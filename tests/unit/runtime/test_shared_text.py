"""Shared texts of records: equal texts are one object, and texts of removed objects are released."""

from __future__ import annotations

import gc
import tracemalloc

from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.runtime.cri import decode_container


def container(number: int) -> api.Container:
    """Return a container with texts that are unique for ``number``."""
    return api.Container(
        id=f"id-{number:061}",
        pod_sandbox_id=f"sandbox-{number:056}",
        image_ref=f"reference-{number:054}",
        labels={f"label-{number:058}": "x", "io.kubernetes.pod.uid": f"uid-{number:060}"},
        metadata=api.ContainerMetadata(name=f"name-{number:059}"),
    )


def test_equal_texts_are_one_object() -> None:
    first, second = container(1), container(1)
    assert decode_container(first).sandbox_id is decode_container(second).sandbox_id


def test_texts_of_removed_containers_do_not_accumulate() -> None:
    messages = [container(number) for number in range(6000)]
    for each in messages[:3000]:
        decode_container(each)  # fills the bounded text cache
    tracemalloc.start()
    try:
        for each in messages[3000:]:
            decode_container(each)
        gc.collect()
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 1_000_000
