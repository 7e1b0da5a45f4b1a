"""Factory of the removers of a pass on this node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from nodeagent.gc.guard import DEFAULT_SETTLE_S, HURRIED_SETTLE_S, RuntimeReader
from nodeagent.gc.image_removers import TransactionalImageRemover
from nodeagent.gc.logs import HostLogs, LeakRemover, LogLinkRemover, PodLogRemover
from nodeagent.gc.removers import ContainerRemover, ImageRemover, ImageRemoverWithoutLeases, SandboxRemover
from nodeagent.model.decision import ItemKind
from nodeagent.pods.images import no_pod_images
from nodeagent.record import Record
from nodeagent.runtime.cri import CriClient, mounts_images
from nodeagent.runtime.storage_backend import CriOnlyStorage, StorageBackend

if TYPE_CHECKING:
    from nodeagent.clock import Clock
    from nodeagent.gc.executor import BatchRemover, Remover
    from nodeagent.gc.pass_state import UndoTerms
    from nodeagent.gc.plan.policy import GCPolicy
    from nodeagent.model import Hold, NodeSnapshot, PodImages, UnreferencedPiece


class RemoverFactory(Record):
    """Factory of the removers of a round, from the snapshot and policy of the round.

    Attributes:
        cri: CRI client of the runtime.
        storage: the runtime's own image and layer records.
        logs: removal of logs.
        clock: measures the age of plans and logs.
        read_holds: reads the current holds; blocking.
        find_unreferenced: reads the unreferenced blobs and snapshots.
        bulk: whether images are removed by name, in transactions, where the storage backend allows it.
        settle_s: maximum wait per transaction for container creations in progress, in seconds.
        read_pod_images: reads the images referenced by the pods of this node.
    """

    cri: CriClient
    storage: StorageBackend
    logs: HostLogs
    clock: Clock
    read_holds: Callable[[], tuple[Hold, ...]]
    find_unreferenced: Callable[[], Awaitable[tuple[UnreferencedPiece, ...]]]
    bulk: bool
    settle_s: float = DEFAULT_SETTLE_S
    read_pod_images: Callable[[], Awaitable[PodImages]] = no_pod_images

    def __call__(
        self, snapshot: NodeSnapshot, policy: GCPolicy, *, hurried: bool = False, undo: UndoTerms | None = None
    ) -> Mapping[ItemKind, Remover | BatchRemover]:
        """Return the remover of each kind of item."""
        # Without a storage graph, containerd's records were unreadable at the observation: the guards use CRI alone.
        storage = self.storage if snapshot.storage is not None else CriOnlyStorage()
        reader = RuntimeReader(
            self.cri,
            storage,
            snapshot,
            mounts_images=mounts_images(snapshot.runtime),
            layers=self.storage,
            read_pod_images=self.read_pod_images,
        )
        leaks = LeakRemover(self.find_unreferenced, self.storage)
        return {
            ItemKind.BLOB: leaks,
            ItemKind.SNAPSHOT: leaks,
            ItemKind.IMAGE: self._image_remover(reader, snapshot, policy, undo, hurried=hurried),
            ItemKind.CONTAINER: ContainerRemover(reader, self.cri, self.logs),
            ItemKind.SANDBOX: SandboxRemover(reader, self.cri),
            ItemKind.POD_LOG_DIRECTORY: PodLogRemover(reader, self.logs, policy.logs, snapshot, clock=self.clock),
            ItemKind.CONTAINER_LOG_LINK: LogLinkRemover(self.cri, self.logs),
        }

    def _image_remover(
        self,
        reader: RuntimeReader,
        snapshot: NodeSnapshot,
        policy: GCPolicy,
        undo: UndoTerms | None,
        *,
        hurried: bool,
    ) -> Remover | BatchRemover:
        records = self.storage.removals if self.bulk else None
        if records is not None and snapshot.storage is not None:
            return TransactionalImageRemover(
                reader,
                self.cri,
                policy.images,
                snapshot,
                clock=self.clock,
                read_holds=self.read_holds,
                names=self.storage,
                records=records,
                settle_s=min(self.settle_s, HURRIED_SETTLE_S) if hurried else self.settle_s,
                undo=undo,
            )
        by_cri = ImageRemover(reader, self.cri, policy.images, snapshot, clock=self.clock, read_holds=self.read_holds)
        return by_cri if records is None else ImageRemoverWithoutLeases(by_cri, records.leases.list_open)
