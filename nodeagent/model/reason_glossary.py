"""Meaning of each reason code, without the details of an item, and what an operator can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from nodeagent.model.reason_codes import ReasonCode as Code


class Meaning(NamedTuple):
    """Meaning of a reason code.

    Attributes:
        items: the items with this reason, and their verdict.
        text: the meaning, as a sentence.
        advice: what an operator can do to change the verdict, as a sentence; empty if nothing needs to be done.
    """

    items: str
    text: str
    advice: str = ""


_IMAGE_REMOVED: Final = "image, removed"
_IMAGE_KEPT: Final = "image, kept"
_ANY_KEPT: Final = "any item, kept"
_CONTAINER_REMOVED: Final = "container or sandbox, removed"
_CONTAINER_KEPT: Final = "container or sandbox, kept"
_LOG_KEPT: Final = "log, kept"
_LEAK_REMOVED: Final = "leak, deleted by 'nodeagent gc leaks --yes'"
_LEAK_KEPT: Final = "leak, kept"
_POD_EVICTED: Final = "pod, evicted"
_POD_KEPT: Final = "pod, kept"
_DOCTOR: Final = "Run 'nodeagent doctor': it names the cause and the fix."
_HOLD_HINT: Final = "To keep it: 'nodeagent hold add IMAGE' for a limited time, or protect.images."
_SOURCE_HINT: Final = "Give the agent the pod's specification: kubelet.url, kubernetes.watch_pods or static manifests."

GLOSSARY: Final[Mapping[Code, Meaning]] = {
    Code.LEAST_RECENTLY_USED: Meaning(
        _IMAGE_REMOVED, "The image is unused, space is needed, and it is next in order of use.", _HOLD_HINT
    ),
    Code.UNUSED_TOO_LONG: Meaning(
        _IMAGE_REMOVED, "No use was observed for longer than image_gc.maximum_unused_age.", _HOLD_HINT
    ),
    Code.UNTAGGED_FIRST: Meaning(
        _IMAGE_REMOVED, "Space is needed, and images without a tag are removed before others.", _HOLD_HINT
    ),
    Code.COLLECT_AHEAD: Meaning(
        _IMAGE_REMOVED,
        "The high threshold is expected within image_gc.collect_ahead, and the image is next in order of use.",
        _HOLD_HINT,
    ),
    Code.ALL_UNUSED: Meaning(_IMAGE_REMOVED, "The image is unused, and was selected by a command.", _HOLD_HINT),
    Code.EVICTION_THRESHOLD_MET: Meaning(
        _IMAGE_REMOVED, "An eviction threshold is met; unused images are removed before pods are evicted.", _HOLD_HINT
    ),
    Code.IRREPLACEABLE_LAST: Meaning(
        _IMAGE_REMOVED,
        "The image cannot be pulled again, and no other image frees enough.",
        'To keep such images always: image_gc.irreplaceable = "never".',
    ),
    Code.IRREPLACEABLE_UNUSED: Meaning(
        _IMAGE_REMOVED, "The image cannot be pulled again, is unused, and was selected by a command.", _HOLD_HINT
    ),
    Code.IN_USE_BY_CONTAINER: Meaning(
        _IMAGE_KEPT,
        "A container, running or dead, refers to the image.",
        "'nodeagent explain IMAGE' names the containers; container GC removes dead ones first.",
    ),
    Code.IN_USE_BY_SANDBOX: Meaning(
        _IMAGE_KEPT, "A sandbox refers to the image.", "It is removable once container GC has removed the sandbox."
    ),
    Code.SANDBOX_IMAGE: Meaning(_IMAGE_KEPT, "The runtime starts every sandbox with this image."),
    Code.PINNED: Meaning(
        _IMAGE_KEPT,
        "The image is pinned in the runtime.",
        "'nodeagent explain IMAGE' shows it; unpin it in containerd.",
    ),
    Code.NAMED_BY_POD: Meaning(_IMAGE_KEPT, "A static manifest, or a pod bound to this node, names the image."),
    Code.PROTECTED: Meaning(
        _IMAGE_KEPT, "A rule of protect.images matches the image.", "Change the rule, which the reason names."
    ),
    Code.NEWEST_TAGS: Meaning(
        _IMAGE_KEPT,
        "The image is among the newest of its repository.",
        "Lower protect.keep_last_n_tags_per_repository.",
    ),
    Code.IRREPLACEABLE: Meaning(
        _IMAGE_KEPT,
        "The image cannot be pulled again, and the configuration keeps such images.",
        'If it may be removed last: image_gc.irreplaceable = "last".',
    ),
    Code.IRREPLACEABLE_LATER: Meaning(
        _IMAGE_KEPT, "The image cannot be pulled again; it is removed for space only, after all other images."
    ),
    Code.IRREPLACEABLE_INSUFFICIENT: Meaning(
        _IMAGE_KEPT,
        "The image cannot be pulled again, and its loss would not end the shortage.",
        "'nodeagent du' shows what else fills the disk.",
    ),
    Code.ORIGIN_UNKNOWN: Meaning(
        _IMAGE_KEPT, "It is unknown whether the image can be pulled again.", "See 'nodeagent doctor' (containerd-api)."
    ),
    Code.HELD: Meaning(
        _IMAGE_KEPT,
        "A hold keeps the image for a limited time.",
        "'nodeagent hold list', 'nodeagent hold remove HOLD'.",
    ),
    Code.LABELS_UNKNOWN: Meaning(
        _IMAGE_KEPT,
        "A rule or a hold names a label, and the labels of the image are unknown.",
        "The reason names the cause; an image without its config must be pulled again.",
    ),
    Code.TOO_YOUNG: Meaning(
        _IMAGE_KEPT, "The image is on the node for less than image_gc.minimum_age.", "Wait, or lower the setting."
    ),
    Code.USED_THIS_PASS: Meaning(_IMAGE_KEPT, "The image was used after the pass had started."),
    Code.USE_UNKNOWN: Meaning(_IMAGE_KEPT, "The agent cannot know all pods that use images.", _DOCTOR),
    Code.GAIN_TOO_SMALL: Meaning(
        _IMAGE_KEPT, "Its removal frees less than image_gc.minimum_gain.", "Most of its layers are shared: see explain."
    ),
    Code.USE_EXPECTED: Meaning(
        _IMAGE_KEPT,
        "The image may be used within image_gc.collect_ahead, or its use was not observed for this time.",
        "None: at the high threshold it is removed like others.",
    ),
    Code.BELOW_HIGH_THRESHOLD: Meaning(
        _IMAGE_KEPT,
        "The image filesystem is below the high threshold, so that no space is needed.",
        "To free space now: 'nodeagent gc --free 10Gi' or 'nodeagent gc --to 70%'.",
    ),
    Code.THRESHOLD_DISABLED: Meaning(
        _IMAGE_KEPT,
        "Removal for space is disabled: image_gc.high_threshold_percent = 100.",
        "Set a threshold below 100.",
    ),
    Code.AGE_NOT_OBSERVED: Meaning(
        _IMAGE_KEPT,
        "Image use was observed for less than image_gc.maximum_unused_age.",
        "Wait; 'nodeagent status' shows the start of the observation.",
    ),
    Code.ENOUGH_FREED: Meaning(_IMAGE_KEPT, "The removals before it in order free enough."),
    Code.COLLECTION_PENDING: Meaning(
        _IMAGE_KEPT, "The runtime's next garbage collection frees enough without the removal of an image."
    ),
    Code.UNDO_WINDOW_OPEN: Meaning(
        _IMAGE_KEPT,
        "Removed images free enough once their undo window ends.",
        "To free space at once: 'nodeagent gc --free SIZE' ends the undo windows that it needs.",
    ),
    Code.LIMIT_IMAGES_PER_PASS: Meaning(
        _IMAGE_KEPT, "The pass reached image_gc.max_images_per_pass.", "The next pass continues."
    ),
    Code.LIMIT_BYTES_PER_PASS: Meaning(
        _IMAGE_KEPT, "The pass reached image_gc.max_bytes_per_pass.", "The next pass continues."
    ),
    Code.FILESYSTEM_UNREADABLE: Meaning(_IMAGE_KEPT, "The usage of the image filesystem cannot be read.", _DOCTOR),
    Code.FILESYSTEM_UNKNOWN: Meaning(
        _IMAGE_KEPT,
        "The node has several image filesystems, and it is unknown which one the removal frees.",
        "runtime.imagefs_path limits the collection to one of them.",
    ),
    Code.FREES_NO_SPACE: Meaning(_IMAGE_KEPT, "Its removal frees no space on the filesystem that needs space."),
    Code.CLOCK_UNTRUSTED: Meaning(
        _ANY_KEPT, "The wall clock jumped or is not set, so that ages are unknown.", "Wait ten minutes; check NTP."
    ),
    Code.FAILED_EARLIER: Meaning(
        _ANY_KEPT, "Its removal failed earlier in this pass.", "The reason names the cause; 'nodeagent history' has it."
    ),
    Code.RUNTIME_INCONSISTENT: Meaning(
        _ANY_KEPT,
        "The lists of the runtime contradict each other.",
        "The next consistent reading continues; if it persists, restart the runtime.",
    ),
    Code.NOT_IN_PLAN: Meaning(_ANY_KEPT, "The applied plan or the selection by --only does not contain the item."),
    Code.POD_DELETED: Meaning(_CONTAINER_REMOVED, "The pod was deleted; the reason names the evidence."),
    Code.POD_FINISHED: Meaning(_CONTAINER_REMOVED, "The pod has finished, and an eviction threshold needs the space."),
    Code.OVER_PER_CONTAINER_LIMIT: Meaning(
        _CONTAINER_REMOVED,
        "More dead instances of the container exist than container_gc.max_per_pod_container.",
        "To keep more for debugging, raise the setting.",
    ),
    Code.OVER_TOTAL_LIMIT: Meaning(
        _CONTAINER_REMOVED, "More dead containers exist than container_gc.max_containers; the oldest are removed first."
    ),
    Code.RUNNING: Meaning(_CONTAINER_KEPT, "The container is running."),
    Code.STATE_UNKNOWN: Meaning(
        _CONTAINER_KEPT,
        "The runtime does not know its state; it may be running.",
        "Restart the runtime if it persists.",
    ),
    Code.CREATED_RECENTLY: Meaning(
        _CONTAINER_KEPT, "It was created less than the minimum age ago.", "Wait, or lower container_gc.minimum_age."
    ),
    Code.WITHIN_LIMITS: Meaning(
        _CONTAINER_KEPT,
        "The number of dead instances is within the limits.",
        "Lower container_gc.max_per_pod_container or container_gc.max_containers.",
    ),
    Code.NEWEST_DEAD_CONTAINER: Meaning(
        _CONTAINER_KEPT, "Beside a kubelet the newest dead instance is kept for its logs and restart count."
    ),
    Code.NOT_KUBELET_MANAGED: Meaning(
        _CONTAINER_KEPT,
        "It has no kubelet labels: another program created it.",
        "To collect such containers too: container_gc.include_unlabelled = true.",
    ),
    Code.AGE_UNKNOWN: Meaning(_CONTAINER_KEPT, "The runtime reports no creation time."),
    Code.SANDBOX_UNKNOWN: Meaning(
        _CONTAINER_KEPT, "The sandbox of the container cannot be read, so that its pod is unknown."
    ),
    Code.SANDBOX_SUPERSEDED: Meaning(
        _CONTAINER_REMOVED, "The sandbox is not ready, has no containers, and the pod has a newer one."
    ),
    Code.SANDBOX_READY: Meaning(_CONTAINER_KEPT, "The sandbox is ready."),
    Code.SANDBOX_HAS_CONTAINERS: Meaning(_CONTAINER_KEPT, "Containers of the sandbox still exist."),
    Code.NEWEST_OF_POD: Meaning(_CONTAINER_KEPT, "It is the newest sandbox of a pod that is not known to be deleted."),
    Code.LINK_TARGET_MISSING: Meaning("log link, removed", "The log file of the link no longer exists."),
    Code.POD_PRESENT: Meaning(
        _LOG_KEPT,
        "The pod is not known to be deleted.",
        "Beside a kubelet, kubernetes.watch_pods gives the proof of deletions.",
    ),
    Code.POD_ITEMS_KEPT: Meaning(
        _LOG_KEPT,
        "The pod is deleted, but one of its containers or sandboxes is kept.",
        "'nodeagent explain POD' names the item and its reason.",
    ),
    Code.MODIFIED_RECENTLY: Meaning(_LOG_KEPT, "It changed recently.", "Wait five minutes."),
    Code.BOOTED_RECENTLY: Meaning(_LOG_KEPT, "The node booted recently; the age of the entry is unknown."),
    Code.NOT_A_POD_LOG_DIRECTORY: Meaning(_LOG_KEPT, "It does not have the form of a pod log directory."),
    Code.LOG_NOT_READ: Meaning(_LOG_KEPT, "The directory was not read completely; the reason names the cause."),
    Code.LOG_OPEN: Meaning(
        _LOG_KEPT, "A process has a file of the directory open.", "The reason names the process; stop it or wait."
    ),
    Code.LOG_OPENERS_UNKNOWN: Meaning(
        _LOG_KEPT, "Open files are unknown, so that a second equal reading is required.", "Wait for the next pass."
    ),
    Code.CONTAINER_PRESENT: Meaning(_LOG_KEPT, "The container of the log still exists."),
    Code.UNREFERENCED: Meaning(_LEAK_REMOVED, "Nothing refers to the content, and it is older than the minimum age."),
    Code.LEASE_WITHOUT_EXPIRY: Meaning(
        _LEAK_REMOVED, "A lease without expiry, such as of a cancelled pull, keeps content on the disk."
    ),
    Code.IMAGE_INCOMPLETE: Meaning(
        _LEAK_REMOVED, "The manifest or the config of the image is missing, so that it cannot start a container."
    ),
    Code.GC_ROOT_LABEL: Meaning(
        _LEAK_KEPT, "A label containerd.io/gc.root keeps the content.", "'nodeagent gc leaks --rooted' includes it."
    ),
    Code.SNAPSHOT_HAS_CHILD: Meaning(_LEAK_KEPT, "A kept snapshot is built on this one."),
    Code.FOREIGN_LEASE: Meaning(
        _LEAK_KEPT,
        "Another program created the lease.",
        "If the program no longer exists: 'nodeagent gc leaks --include LEASE --yes'.",
    ),
    Code.LOW_ON_RESOURCE: Meaning(
        _POD_EVICTED,
        "A threshold is met, and the pod is first in eviction order.",
        "Set requests and priority of the pod; 'nodeagent evict --dry-run' shows the order.",
    ),
    Code.EMPTY_DIR_OVER_LIMIT: Meaning(
        _POD_EVICTED, "An emptyDir uses more than its sizeLimit.", "Raise the limit, or write less."
    ),
    Code.POD_OVER_STORAGE_LIMIT: Meaning(
        _POD_EVICTED,
        "The pod uses more local storage than the limits of its containers.",
        "Raise limits.ephemeral-storage, or write less.",
    ),
    Code.CONTAINER_OVER_STORAGE_LIMIT: Meaning(
        _POD_EVICTED,
        "A container uses more local storage than its limit.",
        "Raise limits.ephemeral-storage, or write less.",
    ),
    Code.NO_THRESHOLD_MET: Meaning(_POD_KEPT, "No eviction threshold is met."),
    Code.STORAGE_LIMIT_UNCHECKED: Meaning(
        _POD_KEPT, "The pod has a storage limit, and its usage could not be read.", "The reason names the unread part."
    ),
    Code.GRACE_PERIOD_RUNNING: Meaning(_POD_KEPT, "A soft threshold is met, and its grace period is still running."),
    Code.NO_NEW_READING: Meaning(_POD_KEPT, "No new reading of the signal exists since the last action."),
    Code.READING_REJECTED: Meaning(_POD_KEPT, "The reading of the signal is not plausible.", _DOCTOR),
    Code.NO_LONGER_MET: Meaning(_POD_KEPT, "The threshold was met before, and is no longer met."),
    Code.NOT_RELIEVED_BY_EVICTION: Meaning(_POD_KEPT, "The eviction of a pod does not relieve this signal."),
    Code.RECLAIM_FIRST: Meaning(
        _POD_KEPT, "Unused images, dead containers and logs are removed before a pod is evicted."
    ),
    Code.RECLAIM_SUFFICIENT: Meaning(_POD_KEPT, "The removal of unused items cleared the threshold."),
    Code.EVICTION_LIMIT: Meaning(
        _POD_KEPT, "The number of evictions per time is at its limit.", "See eviction.max_evictions_per_window."
    ),
    Code.EVICTION_SLOWED: Meaning(
        _POD_KEPT, "The number of evictions is at its limit; evictions for memory continue at a slower rate."
    ),
    Code.EFFECT_OUTSTANDING: Meaning(_POD_KEPT, "The effect of the last action is not measured yet."),
    Code.EVICTION_INEFFECTIVE: Meaning(
        _POD_KEPT,
        "Earlier evictions freed too little: no further pod is evicted unless its growth causes the shortage.",
        "'nodeagent pressure' and 'nodeagent du' show what uses the resource.",
    ),
    Code.EFFECT_TOO_SMALL: Meaning(
        _POD_KEPT,
        "Its eviction would free too little of the shortage.",
        "'nodeagent evict --dry-run' shows what uses the resource.",
    ),
    Code.GROWTH_UNKNOWN: Meaning(
        _POD_KEPT, "Its eviction would free little, and its growth is not measured yet.", "Wait for the next readings."
    ),
    Code.RANKED_LATER: Meaning(_POD_KEPT, "Another pod is evicted first: at most one per pass."),
    Code.ANOTHER_POD_EVICTED: Meaning(_POD_KEPT, "Another pod is evicted first: at most one per pass."),
    Code.STATIC_POD: Meaning(_POD_KEPT, "Static pods are never evicted."),
    Code.MIRROR_POD: Meaning(_POD_KEPT, "Mirror pods are never evicted."),
    Code.CRITICAL_POD: Meaning(_POD_KEPT, "Critical pods are never evicted."),
    Code.PROTECTED_NAMESPACE: Meaning(
        _POD_KEPT, "The namespace of the pod is protected.", "See eviction.protected_namespaces."
    ),
    Code.FACTS_CONTRADICTORY: Meaning(_POD_KEPT, "The sources of the pod contradict each other.", _SOURCE_HINT),
    Code.FACTS_MISSING: Meaning(_POD_KEPT, "It is unknown whether the pod may be evicted.", _SOURCE_HINT),
    Code.USAGE_UNKNOWN: Meaning(_POD_KEPT, "Its usage of the resource could not be read."),
    Code.LAYERS_UNKNOWN: Meaning(
        _POD_KEPT, "It is unknown whether its writable layers are on the filesystem under pressure."
    ),
    Code.LAYERS_ELSEWHERE: Meaning(_POD_KEPT, "Its writable layers are not on the filesystem under pressure."),
    Code.POD_NOT_ACTIVE: Meaning(_POD_KEPT, "The pod has ended or is ending."),
    Code.BEING_EVICTED: Meaning(_POD_KEPT, "The pod is being evicted."),
}
"""Meaning of every reason code."""
