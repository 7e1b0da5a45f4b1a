"""Closed list of reason codes for decisions, each with its sentence template."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class ReasonCode(StrEnum):
    """Reason code of a decision. The values are part of the JSON output and of logs; existing values never change."""

    # images: removed
    LEAST_RECENTLY_USED = "least-recently-used"
    UNUSED_TOO_LONG = "unused-too-long"
    UNTAGGED_FIRST = "untagged-first"
    COLLECT_AHEAD = "collect-ahead"
    ALL_UNUSED = "all-unused"
    EVICTION_THRESHOLD_MET = "eviction-threshold-met"
    IRREPLACEABLE_LAST = "irreplaceable-last"
    IRREPLACEABLE_UNUSED = "irreplaceable-unused"
    # images: kept
    IN_USE_BY_CONTAINER = "in-use-by-container"
    IN_USE_BY_SANDBOX = "in-use-by-sandbox"
    SANDBOX_IMAGE = "sandbox-image"
    PINNED = "pinned"
    NAMED_BY_POD = "named-by-pod"
    PROTECTED = "protected"
    NEWEST_TAGS = "newest-tags"
    IRREPLACEABLE = "irreplaceable"
    IRREPLACEABLE_LATER = "irreplaceable-later"
    IRREPLACEABLE_INSUFFICIENT = "irreplaceable-insufficient"
    ORIGIN_UNKNOWN = "origin-unknown"
    HELD = "held"
    LABELS_UNKNOWN = "labels-unknown"
    TOO_YOUNG = "too-young"
    USED_THIS_PASS = "used-this-pass"
    USE_UNKNOWN = "use-unknown"
    GAIN_TOO_SMALL = "gain-too-small"
    USE_EXPECTED = "use-expected"
    BELOW_HIGH_THRESHOLD = "below-high-threshold"
    THRESHOLD_DISABLED = "threshold-disabled"
    AGE_NOT_OBSERVED = "age-not-observed"
    ENOUGH_FREED = "enough-freed"
    COLLECTION_PENDING = "collection-pending"
    UNDO_WINDOW_OPEN = "undo-window-open"
    LIMIT_IMAGES_PER_PASS = "limit-images-per-pass"
    LIMIT_BYTES_PER_PASS = "limit-bytes-per-pass"
    FILESYSTEM_UNREADABLE = "filesystem-unreadable"
    FILESYSTEM_UNKNOWN = "filesystem-unknown"
    FREES_NO_SPACE = "frees-no-space"
    # all items: no removal by age while the wall clock is untrusted
    CLOCK_UNTRUSTED = "clock-untrusted"
    # all items: removal failed earlier in this pass
    FAILED_EARLIER = "failed-earlier"
    # all items: kept, since the CRI lists contradict each other
    RUNTIME_INCONSISTENT = "runtime-inconsistent"
    # all items: kept, since the applied plan does not list the item
    NOT_IN_PLAN = "not-in-plan"
    # containers: removed
    POD_DELETED = "pod-deleted"
    POD_FINISHED = "pod-finished"
    OVER_PER_CONTAINER_LIMIT = "over-per-container-limit"
    OVER_TOTAL_LIMIT = "over-total-limit"
    # containers: kept
    RUNNING = "running"
    STATE_UNKNOWN = "state-unknown"
    CREATED_RECENTLY = "created-recently"
    WITHIN_LIMITS = "within-limits"
    NEWEST_DEAD_CONTAINER = "newest-dead-container"
    NOT_KUBELET_MANAGED = "not-kubelet-managed"
    AGE_UNKNOWN = "age-unknown"
    SANDBOX_UNKNOWN = "sandbox-unknown"
    # sandboxes: removed
    SANDBOX_SUPERSEDED = "sandbox-superseded"
    # sandboxes: kept
    SANDBOX_READY = "sandbox-ready"
    SANDBOX_HAS_CONTAINERS = "sandbox-has-containers"
    NEWEST_OF_POD = "newest-of-pod"
    # logs: removed
    LINK_TARGET_MISSING = "link-target-missing"
    # logs: kept
    POD_PRESENT = "pod-present"
    POD_ITEMS_KEPT = "pod-items-kept"
    MODIFIED_RECENTLY = "modified-recently"
    BOOTED_RECENTLY = "booted-recently"
    NOT_A_POD_LOG_DIRECTORY = "not-a-pod-log-directory"
    LOG_NOT_READ = "log-not-read"
    LOG_OPEN = "log-open"
    LOG_OPENERS_UNKNOWN = "log-openers-unknown"
    CONTAINER_PRESENT = "container-present"
    # leaks: removed
    UNREFERENCED = "unreferenced"
    LEASE_WITHOUT_EXPIRY = "lease-without-expiry"
    IMAGE_INCOMPLETE = "image-incomplete"
    # leaks: kept
    GC_ROOT_LABEL = "gc-root-label"
    SNAPSHOT_HAS_CHILD = "snapshot-has-child"
    FOREIGN_LEASE = "foreign-lease"
    # pods: evicted
    LOW_ON_RESOURCE = "low-on-resource"
    EMPTY_DIR_OVER_LIMIT = "empty-dir-over-limit"
    POD_OVER_STORAGE_LIMIT = "pod-over-storage-limit"
    CONTAINER_OVER_STORAGE_LIMIT = "container-over-storage-limit"
    # pods: kept, since no pod is evicted in this pass
    NO_THRESHOLD_MET = "no-threshold-met"
    STORAGE_LIMIT_UNCHECKED = "storage-limit-unchecked"
    GRACE_PERIOD_RUNNING = "grace-period-running"
    NO_NEW_READING = "no-new-reading"
    READING_REJECTED = "reading-rejected"
    NO_LONGER_MET = "no-longer-met"
    NOT_RELIEVED_BY_EVICTION = "not-relieved-by-eviction"
    RECLAIM_FIRST = "reclaim-first"
    RECLAIM_SUFFICIENT = "reclaim-sufficient"
    EVICTION_LIMIT = "eviction-limit"
    EVICTION_SLOWED = "eviction-slowed"
    EFFECT_OUTSTANDING = "effect-outstanding"
    EVICTION_INEFFECTIVE = "eviction-ineffective"
    # pods: kept, since their eviction does not help
    EFFECT_TOO_SMALL = "effect-too-small"
    GROWTH_UNKNOWN = "growth-unknown"
    # pods: kept, since another pod is evicted
    RANKED_LATER = "ranked-later"
    ANOTHER_POD_EVICTED = "another-pod-evicted"
    # pods: not an eviction candidate
    STATIC_POD = "static-pod"
    MIRROR_POD = "mirror-pod"
    CRITICAL_POD = "critical-pod"
    PROTECTED_NAMESPACE = "protected-namespace"
    FACTS_CONTRADICTORY = "facts-contradictory"
    FACTS_MISSING = "facts-missing"
    USAGE_UNKNOWN = "usage-unknown"
    LAYERS_UNKNOWN = "layers-unknown"
    LAYERS_ELSEWHERE = "layers-elsewhere"
    POD_NOT_ACTIVE = "pod-not-active"
    BEING_EVICTED = "being-evicted"


SENTENCES: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.LEAST_RECENTLY_USED: "least recently used; imagefs{on} {usage}",
    ReasonCode.UNUSED_TOO_LONG: (
        "no use observed for {unused_s}, more than the maximum of {maximum_s}; observed since {observed_since_at}"
    ),
    ReasonCode.UNTAGGED_FIRST: ("no tag, removed before all images with a tag; imagefs{on} {usage}"),
    ReasonCode.COLLECT_AHEAD: (
        "least recently used; by the forecast imagefs is {high_percent}% full in {expected_s}, within collect_ahead "
        "{ahead_s}"
    ),
    ReasonCode.ALL_UNUSED: "unused; removed at any usage of imagefs",
    ReasonCode.EVICTION_THRESHOLD_MET: "unused; removed to clear an eviction threshold",
    ReasonCode.IRREPLACEABLE_LAST: "cannot be pulled again: {how}; removed last, as no other image frees enough",
    ReasonCode.IRREPLACEABLE_UNUSED: "cannot be pulled again: {how}; unused, removed at any usage of imagefs",
    ReasonCode.IN_USE_BY_CONTAINER: "in use by {count} container(s): {containers}{note}",
    ReasonCode.IN_USE_BY_SANDBOX: "in use by {count} sandbox(es): {sandboxes}{note}",
    ReasonCode.SANDBOX_IMAGE: "sandbox image of the runtime ({how})",
    ReasonCode.PINNED: "pinned in the runtime",
    ReasonCode.NAMED_BY_POD: "named by {count} pod(s) of this node: {pods}",
    ReasonCode.PROTECTED: "protected by {rule}, which matches {matched}",
    ReasonCode.NEWEST_TAGS: "among the newest {keep} image(s) of {repository}",
    ReasonCode.IRREPLACEABLE: "cannot be pulled again: {how}",
    ReasonCode.IRREPLACEABLE_LATER: "cannot be pulled again: {how}; removed for space only, after all other images",
    ReasonCode.IRREPLACEABLE_INSUFFICIENT: (
        "cannot be pulled again: {how}; kept, since too little space is freed even with its removal"
    ),
    ReasonCode.ORIGIN_UNKNOWN: "origin unknown: the image may not be available for another pull",
    ReasonCode.HELD: "held by {by} until {until_at}: {why} (hold {hold})",
    ReasonCode.LABELS_UNKNOWN: "labels unknown, and a rule or a hold names a label: {detail}",
    ReasonCode.TOO_YOUNG: (
        "on this node for {age_s}, less than the minimum age {minimum_s}; eligible from {eligible_at}"
    ),
    ReasonCode.USED_THIS_PASS: "used at {last_used_at}, after this pass started",
    ReasonCode.USE_UNKNOWN: "use unknown: {detail}",
    ReasonCode.GAIN_TOO_SMALL: "would free only {gain_bytes}, less than the minimum gain {minimum_bytes}",
    ReasonCode.USE_EXPECTED: "not collected ahead of the threshold: {detail}",
    ReasonCode.BELOW_HIGH_THRESHOLD: "imagefs{on} is {used_percent}% full, below the high threshold {high_percent}%",
    ReasonCode.THRESHOLD_DISABLED: "threshold collection disabled (high threshold 100%)",
    ReasonCode.AGE_NOT_OBSERVED: "not removed by age: {detail}, maximum {maximum_s}",
    ReasonCode.CLOCK_UNTRUSTED: "no removal by age before {eligible_at}: {detail}",
    ReasonCode.ENOUGH_FREED: "images before it in order free enough",
    ReasonCode.COLLECTION_PENDING: (
        "{pending_bytes} of unreferenced content, not collected by the runtime yet, free enough"
    ),
    ReasonCode.UNDO_WINDOW_OPEN: "{undo_bytes} of removed images, freed after their undo window, are enough",
    ReasonCode.LIMIT_IMAGES_PER_PASS: "{limit} image(s) removed by this pass, the limit per pass",
    ReasonCode.LIMIT_BYTES_PER_PASS: "exceeds the limit of {limit_bytes} per pass",
    ReasonCode.FILESYSTEM_UNREADABLE: "cannot read the image filesystem{on}: {detail}",
    ReasonCode.FILESYSTEM_UNKNOWN: "unknown on which of {count} image filesystems its removal frees space",
    ReasonCode.FREES_NO_SPACE: "its removal frees no space on {where}",
    ReasonCode.FAILED_EARLIER: "removal failed in this pass: {detail}",
    ReasonCode.RUNTIME_INCONSISTENT: "the lists of the runtime contradict each other: {detail}",
    ReasonCode.NOT_IN_PLAN: "not in the applied plan, or not selected by --only",
    ReasonCode.POD_DELETED: "pod deleted: {how}",
    ReasonCode.POD_FINISHED: "pod finished, and disk space is needed: {how}",
    ReasonCode.OVER_PER_CONTAINER_LIMIT: "dead container {rank} of {name}, newest first; keeping {limit} per container",
    ReasonCode.OVER_TOTAL_LIMIT: "{total} dead containers, keeping {limit}; oldest first",
    ReasonCode.RUNNING: "running",
    ReasonCode.STATE_UNKNOWN: "state unknown to the runtime; it may be running",
    ReasonCode.CREATED_RECENTLY: "created {age_s} ago, less than the minimum age {minimum_s}",
    ReasonCode.WITHIN_LIMITS: (
        "dead container {rank} of {name}, newest first; within the limits, and its pod is not known to be deleted{note}"
    ),
    ReasonCode.NEWEST_DEAD_CONTAINER: (
        "newest dead container {name} of a pod not known to be deleted; the kubelet reads its log, exit and "
        "restart count"
    ),
    ReasonCode.NOT_KUBELET_MANAGED: "no kubelet labels; only containers created by a kubelet are removed",
    ReasonCode.AGE_UNKNOWN: "creation time unknown",
    ReasonCode.SANDBOX_UNKNOWN: "pod unknown: {detail}",
    ReasonCode.SANDBOX_SUPERSEDED: "not ready, without containers, and a newer sandbox of the pod exists",
    ReasonCode.SANDBOX_READY: "ready",
    ReasonCode.SANDBOX_HAS_CONTAINERS: "still has {count} container(s)",
    ReasonCode.NEWEST_OF_POD: "newest sandbox of a pod that is not known to be deleted{note}",
    ReasonCode.LINK_TARGET_MISSING: "target {target} does not exist",
    ReasonCode.POD_PRESENT: "pod not known to be deleted{note}",
    ReasonCode.POD_ITEMS_KEPT: "pod deleted ({how}), but {count} of its containers and sandboxes are kept",
    ReasonCode.MODIFIED_RECENTLY: "changed {age_s} ago, less than {minimum_s}",
    ReasonCode.BOOTED_RECENTLY: "node booted {age_s} ago, less than {minimum_s}; the entry may have changed since",
    ReasonCode.NOT_A_POD_LOG_DIRECTORY: "not a pod log directory: {detail}",
    ReasonCode.LOG_NOT_READ: "not read completely: {detail}",
    ReasonCode.LOG_OPEN: "open in a process for {use}: {path}{note}",
    ReasonCode.LOG_OPENERS_UNKNOWN: (
        "open files unknown ({detail}); unchanged for {unchanged_s}, a second equal reading {period_s} after the first "
        "is required"
    ),
    ReasonCode.CONTAINER_PRESENT: "container is {state}",
    ReasonCode.LOW_ON_RESOURCE: (
        "node is low on {resource}: threshold {threshold} met, {reading}; first in eviction order: {measure}{note}"
    ),
    ReasonCode.EMPTY_DIR_OVER_LIMIT: "emptyDir {volume} uses {usage_bytes}, limit {limit_bytes}",
    ReasonCode.POD_OVER_STORAGE_LIMIT: "pod uses {usage_bytes} of local storage{parts}, limit {limit_bytes}",
    ReasonCode.CONTAINER_OVER_STORAGE_LIMIT: (
        "container {container} uses {usage_bytes} of local storage{parts}, limit {limit_bytes}"
    ),
    ReasonCode.NO_THRESHOLD_MET: "no eviction threshold met",
    ReasonCode.STORAGE_LIMIT_UNCHECKED: "storage limit not checked, usage not read: {unread}",
    ReasonCode.GRACE_PERIOD_RUNNING: ("{threshold} met for {held_s}; grace period {grace_s}, {left_s} left"),
    ReasonCode.NO_NEW_READING: "{threshold} met, but no new reading since the last action",
    ReasonCode.READING_REJECTED: "{threshold}: reading rejected: {detail}",
    ReasonCode.NO_LONGER_MET: "{threshold} no longer met: {reading}",
    ReasonCode.NOT_RELIEVED_BY_EVICTION: "{threshold} met, but evicting a pod does not relieve this signal",
    ReasonCode.RECLAIM_FIRST: "{threshold} met; node-level reclaim first: {steps}",
    ReasonCode.RECLAIM_SUFFICIENT: "{threshold} was met; node-level reclaim was sufficient: {reading}",
    ReasonCode.EVICTION_LIMIT: "{count} pod(s) evicted in the last {window_s}, limit {limit}",
    ReasonCode.EVICTION_SLOWED: (
        "{count} pod(s) evicted in the last {window_s}, limit {limit}; next eviction for memory in {left_s}"
    ),
    ReasonCode.EFFECT_OUTSTANDING: ("{threshold} met; waiting for the effect of {action}, at most {left_s}"),
    ReasonCode.EVICTION_INEFFECTIVE: (
        "{threshold} met; {action} freed too little: only a pod whose growth causes the shortage is evicted before the "
        "threshold is cleared"
    ),
    ReasonCode.EFFECT_TOO_SMALL: (
        "its eviction frees {frees} of the shortage of {short}{loss}; less than {minimum}, and its usage does not "
        "grow: {measure}"
    ),
    ReasonCode.GROWTH_UNKNOWN: (
        "its eviction frees {frees} of the shortage of {short}{loss}; less than {minimum}, and its growth is not "
        "measured yet: {measure}"
    ),
    ReasonCode.RANKED_LATER: "rank {rank} of {of}; at most one pod is evicted per pass: {measure}{note}",
    ReasonCode.ANOTHER_POD_EVICTED: "at most one pod is evicted per pass, and {victim} is evicted first",
    ReasonCode.STATIC_POD: "static pod (source: {source})",
    ReasonCode.MIRROR_POD: "mirror pod (source: {source})",
    ReasonCode.CRITICAL_POD: "critical: {how} (source: {source})",
    ReasonCode.PROTECTED_NAMESPACE: "in the protected namespace {namespace}",
    ReasonCode.FACTS_CONTRADICTORY: "contradictory pod facts: {detail}",
    ReasonCode.FACTS_MISSING: "unknown: {missing}",
    ReasonCode.USAGE_UNKNOWN: "{resource} usage unknown",
    ReasonCode.LAYERS_UNKNOWN: "unknown whether its writable layers are on {filesystem}, the filesystem under pressure",
    ReasonCode.LAYERS_ELSEWHERE: "has no writable layer on {filesystem}, the filesystem under pressure",
    ReasonCode.POD_NOT_ACTIVE: "pod is {lifecycle}",
    ReasonCode.BEING_EVICTED: "evicted; waiting for the effect",
    ReasonCode.UNREFERENCED: "unreferenced; created {age_s} ago",
    ReasonCode.LEASE_WITHOUT_EXPIRY: "lease without expiry, created {age_s} ago",
    ReasonCode.IMAGE_INCOMPLETE: "{missing}; not used by a container, and named {age_s} ago",
    ReasonCode.FOREIGN_LEASE: "lease of another program, without expiry; deleted only with --include {lease}",
    ReasonCode.GC_ROOT_LABEL: "kept by its containerd.io/gc.root label",
    ReasonCode.SNAPSHOT_HAS_CHILD: "parent of snapshot {child}, which is kept",
}
"""Sentence template of each reason; ``{on}`` is the path of the image filesystem if a node has several, else empty.

``{usage}`` is the usage of the resources of a filesystem, with their targets.
"""
