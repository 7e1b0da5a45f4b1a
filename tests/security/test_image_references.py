"""Attacks by image references in labels of pulled content: cycles and endless chains."""

from __future__ import annotations

import time

from nodeagent._proto.containerd.services.content.v1 import content_pb2
from nodeagent._proto.containerd.services.images.v1 import images_pb2
from nodeagent._proto.containerd.services.snapshots.v1 import snapshots_pb2
from nodeagent._proto.containerd.types.descriptor_pb2 import Descriptor
from nodeagent.runtime.containerd import decode_blob, decode_snapshot, decode_stored_image
from nodeagent.runtime.namespace_lists import Inventory, Stored

LENGTH = 20_000


def test_cyclic_and_long_chains_of_references_end() -> None:
    label = "containerd.io/gc.ref.content.l.0"
    top = {"containerd.io/gc.ref.snapshot.overlayfs": "s0", label: "b0"}
    blobs = {
        "manifest": decode_blob(content_pb2.Info(digest="manifest", labels=top)),
        **{
            f"b{number}": decode_blob(
                content_pb2.Info(digest=f"b{number}", labels={label: f"b{(number + 1) % LENGTH}"})
            )
            for number in range(LENGTH)
        },
    }
    snapshots = {
        f"s{number}": decode_snapshot(snapshots_pb2.Info(name=f"s{number}", parent=f"s{(number + 1) % LENGTH}"))
        for number in range(LENGTH)
    }
    image = decode_stored_image(images_pb2.Image(name="r/a:1", target=Descriptor(digest="manifest")))
    started_s = time.thread_time()
    inventory = Inventory(Stored(blobs, {"overlayfs": snapshots}), images=(image,))
    reached = inventory.referenced_by_images(inventory.images)
    assert time.thread_time() - started_s < 10
    assert len([node for node in reached if node in inventory.stored.existing]) == 2 * LENGTH + 1
