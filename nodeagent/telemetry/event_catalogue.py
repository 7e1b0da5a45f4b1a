"""Catalogue of log events: message ID and message template of each.

An event without an entry is logged without a message ID. The explanations for ``journalctl -x`` are in
``systemd/nodeagent.catalog``; a test compares both files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from nodeagent.text import escape, escape_lines


class Event(NamedTuple):
    """Entry of the catalogue.

    Attributes:
        message_id: journald's ``MESSAGE_ID``; never changes.
        sentence: message template with the keys of the event as placeholders; a part in brackets is omitted if one of
            its values is absent, ``None`` or empty.
    """

    message_id: str
    sentence: str


EVENTS: Final[Mapping[str, Event]] = {
    "agent_started": Event("f1bcad2462614d5cb149463c145d4aa6", "started, role {role}[ ({role_because})]"),
    "agent_stopped": Event("9295bc51ce7c4c3cbe1daddf602c8081", "stopped"),
    "role_changed": Event("1f2e40d13c3741d2b080007a0ae8bb8b", "role changed from {before} to {role}[: {because}]"),
    "role_contradiction": Event("9d16b2a3591847ad8730cf255cc9e690", "{warning}"),
    "role_unknown": Event("1145430b4c5841598c6e296930ee81ee", "cannot read traces of a kubelet[: {error}]"),
    "loop_disabled": Event("4bb1e60beb1b46dea8d3e49ddb316e19", "{loop} disabled[: {because}]"),
    "runtime_unavailable": Event("df4d455f63fe4a8cac2fbd764f390a13", "container runtime unavailable[: {error}]"),
    "runtime_available": Event("39652d63cbe04d15be7bb4f8a7565e50", "container runtime available again"),
    "pass_started": Event(
        "a02e554acc4b4f7686efe868222fc206", "{scope} pass started ({trigger})[: {planned} removals planned]"
    ),
    "pass_interrupted": Event(
        "7c47d1924b6a4c46a3b63a3b4dda6768",
        "{scope} pass {pass_id} was killed[: {removed} removed, {unknown} with unknown outcome]",
    ),
    "runtime_inconsistent": Event(
        "dd57d2df3d49435eb9a8e2f33b78b7b3",
        "lists of the runtime contradict each other, nothing is removed[: {problem}]",
    ),
    "runtime_consistent": Event("3c16d43f77ec4d21aa5b2f197c14a8da", "lists of the runtime agree again"),
    "pass_finished": Event(
        "23223df32fb14886ae290734d5c6ec65",
        "{scope} pass finished ({end}): {removed} removed[, {freed_bytes} bytes freed]",
    ),
    "pass_failed": Event("e1ede8e54a544ad88c72be9a955348a7", "{loop} pass failed[: {error}]"),
    "pass_crashed": Event("908c18c633a94676bce30ab33fffb498", "{loop} pass crashed; this is a bug"),
    "trend_not_recorded": Event("5b1f0c9be8b94cf0a3c6d8a6f1c37f52", "resources of the node not recorded[: {error}]"),
    "shortage_expected": Event("0d5c1e9d0d8a4b6e9f2a7c41b8e3d65f", "shortage expected: {detail}"),
    "shortage_not_expected": Event("b7f4a2c86e1d4f03a95d3e7c10b28f94", "no shortage of {resource} expected any longer"),
    "pass_warning": Event("352709c59552472ab95a413d3aae202d", "{warning}"),
    "removal": Event("cb3a7442a8ef4b44bfe7fa43578f0040", "{kind} {name}: {outcome}[; {why}]"),
    "would_remove": Event("e135145d59084d1495642ad74007d78f", "{kind} {name} would be removed[: {why}]"),
    "would_keep": Event("17e883b2e7524dbeb0b515d19ca63e7f", "{kind} {name} would no longer be removed[: {why}]"),
    "imagefs_breakdown": Event(
        "3dbe3b6bfdb247038d7a545e837d49af",
        "image filesystem usage measured[: {images_in_use_bytes} bytes in images in use]",
    ),
    "imagefs_breakdown_failed": Event(
        "8455d73e607046e483d4cb5248ef002a", "cannot read image filesystem usage[: {error}]"
    ),
    "image_removal_recovered": Event("d2f4c8a16b0e4f7397c5e8a1b3d60f24", "{notice}"),
    "image_removal_undone": Event(
        "5acd8263fdfd45eeb1a1aa75e2da3d01", "images removed by pass {pass_id} restored: {restored}[, failed: {failed}]"
    ),
    "store_notice": Event("9e81a0620184428d94833fed784d10d7", "{notice}"),
    "store_degraded": Event(
        "ebc1a14ed1fd4e18a01725d7ae473fa3", "cannot write the state database, continuing in memory[: {problem}]"
    ),
    "store_recovered": Event("05cfd9ad2a3749e194a62ddcfdbbe738", "state database writable again"),
    "config_reloaded": Event("67495dfed7664de0a0d5c1458337ddc3", "configuration reloaded[, {changes}]"),
    "config_rejected": Event(
        "124d88241f304e42acb70525d922aead", "configuration rejected, keeping the running one[: {error}]"
    ),
    "config_invalid": Event(
        "b85ff1948d2a42ccbf8509bffc2e2d3a", "configuration invalid, only graceful shutdown runs[: {error}]"
    ),
    "last_settings_not_written": Event("432148c48bbe450092b330fac74c03fe", "{error}"),
    "reload_removes_more": Event(
        "65ff745889af49beb0573691c686a64d", "the new settings remove {items} more items[, {frees_bytes} bytes]"
    ),
    "reload_effect_unknown": Event(
        "a31c786a63ad478da71f1b44deeb658d", "cannot preview the effect of the new settings[: {error}]"
    ),
    "reload_grace_started": Event(
        "6ec56b4b18334866801632d26af4d5a3",
        "dry run until {until}[ ({because})], then passes remove and evict[: {effect}]",
    ),
    "reload_grace_restarted": Event(
        "48812f4f4f98400eb1f4c40bf9d94e3c", "the pause ended: dry run for another {seconds} s[, until {until}]"
    ),
    "reload_grace_cancelled": Event(
        "f1906283cdce4ec38ea696db4631506f", "the reload grace period was cancelled: dry_run is true again"
    ),
    "reload_grace_ended": Event(
        "67b81312f30f4c409b04de304f634da9", "reload grace period ended: passes remove and evict from now on"
    ),
    "mode_write_failed": Event(
        "619af18fe22c4d4cb98356543aeeab7c",
        "cannot write the mode file, a restart may switch the mode without a grace period[: {error}]",
    ),
    "tasks_stuck": Event("f986472799364eef9aedd42ebee3005f", "tasks without progress[: {tasks}]"),
    "memory_not_locked": Event(
        "a1cf2c02d09447caaf0c3f5226fbf2e7", "cannot lock memory (mlockall), the daemon may be paged out[: {because}]"
    ),
    "eviction_monitoring_started": Event(
        "c3175b13e7bc4297bca6f1ac2e4f712b", "eviction monitoring started[: {thresholds}]"
    ),
    "eviction_warning": Event("7fa4f66d64784104a9f2ecd3bfcede93", "{warning}"),
    "threshold_met": Event(
        "2aa3e893a2e545d39923e6fdef457999", "threshold {threshold} met[: {available} of {capacity} available]"
    ),
    "threshold_cleared": Event("d225afb623774c31ba43811c9a3abce2", "threshold {threshold} cleared"),
    "memory_estimates_differ": Event(
        "0f6a3f0c2d8b4f6f9a0f0f4b7c55d1e2",
        "one estimate of memory meets {threshold}, without evidence of a shortage[: {why}]",
    ),
    "memory_estimates_agree": Event(
        "5be1c8d49f4e4d0f8b7f0a6f2e93c7a4", "the estimates of memory agree about {threshold}"
    ),
    "condition_changed": Event("19f725b0219246179cfd69d8f8bff126", "node condition {condition} is {holds}"),
    "reclaimed": Event("c1dd1d1edd4940baa76e828559865171", "{step} for {threshold}: {removed} removed"),
    "would_reclaim": Event("2e1e312529d3475ebacbb2dc2a16c4f4", "{step} for {threshold}: {removed} would be removed"),
    "reclaim_insufficient": Event(
        "50479fa3141d4bc88b3cc4496bbc4c98",
        "{step} cannot clear {threshold}[: {reclaimable} reclaimable]; a pod is evicted meanwhile",
    ),
    "reclaim_failed": Event("deb50c80220e495782ce7ffa21621f83", "{step} for {threshold} failed[: {error}]"),
    "eviction_started": Event("d2daeb4e08834021b27cea46db49e507", "evicting {pod_namespace}/{pod_name}[: {why}]"),
    "evicted": Event("24f964291f8445a882677028d3afeda4", "evicted {pod_namespace}/{pod_name}[ in {took_s} s][: {why}]"),
    "eviction_failed": Event(
        "75a5b8226491438d875f9c605e1a6da6", "eviction of {pod_namespace}/{pod_name}: {outcome}[: {detail}]"
    ),
    "eviction_postponed": Event(
        "6f0d0d0a4c1b4f1f9b8a5f2d7c3e9a41", "eviction of {pod_namespace}/{pod_name} postponed[: {because}]"
    ),
    "eviction_grace_shortened": Event(
        "9b220ab7d17840b7b73c6a1c9c126a6c", "termination grace period of pod {pod_uid} shortened[: {threshold} met]"
    ),
    "pods_not_listed": Event(
        "eec5c99131a24168b4e7b97d06d06943",
        "no pod list from the runtime within {waited_s} s[; using the list of {age_s} s ago ({pods} pods)]",
    ),
    "page_cache_reclaimed": Event(
        "4011e80b129f4d02bd3c3458540cf032", "page cache of {pods} reclaimed for {threshold}[: cleared {cleared}]"
    ),
    "would_evict": Event("373ecfcfc07b40869aef6a76e8a6325a", "{pod_namespace}/{pod_name} would be evicted[: {why}]"),
    "no_evictable_pod": Event("03e7822adc9941beb383c49cd495620f", "{because}"),
    "eviction_limit_reached": Event("ccb32f94d78e44e98e064b4f2e7d2eaf", "eviction limit reached[: {why}]"),
    "eviction_withheld": Event("20d70c59e833470a87d10574a6dca1f4", "eviction and reclaim withheld[: {why}]"),
    "eviction_ineffective": Event(
        "c5ea1f4cef514afaab0da477a3928b5a",
        "{action} freed too little: {signal} {change}; no similar eviction before the threshold is cleared",
    ),
    "eviction_cleanup_failed": Event(
        "81474bc75b9e4fdd991cbdd33d39b35c",
        "containers of {pod_namespace}/{pod_name} not removed after its eviction[: {detail}]",
    ),
    "eviction_resumed": Event(
        "51b0c408115f464fb5206e69a291a7c2", "eviction of {pod_namespace}/{pod_name} resumed after a restart"
    ),
    "effect_measured": Event("679739cbed724e2b80027d9c3dae0351", "{action}: {signal} {change} in {waited_s} s"),
    "effect_missing": Event(
        "b22a8ca8394d45748fade8d44a4dad1f",
        "{action}: no effect measured in {waited_s} s; {signal} {change}",
    ),
    "oom_kill": Event(
        "87af15c419cd476e8443501b37ab1131",
        "OOM kill: {processes} process(es) of {pod_namespace}/{pod_name}[ {container}]",
    ),
    "shutdown_disabled": Event("a0d23eb211194a67a27841f313e8555e", "graceful shutdown disabled[: {because}]"),
    "shutdown_ready": Event(
        "c822c55806bd4bfc8d5ea88e10249efa", "graceful shutdown ready: {granted_s} s granted of {wanted_s} s requested"
    ),
    "shutdown_warning": Event("f13eb9d0673a45238c97303c8bf59193", "{note}"),
    "inhibitor_lock_acquired": Event("dd4f32636f054280bee8f327ea5a6ca8", "inhibitor lock acquired[: {because}]"),
    "inhibitor_lock_lost": Event("26c9ccaeefe1428388ebbc442b3e06a4", "inhibitor lock lost[: {because}]"),
    "inhibitor_lock_missing": Event("a6ba477d9fa149e288dd88e2b639970b", "inhibitor lock missing[: {because}]"),
    "inhibitor_lock_released": Event("b706ffd1ec0644689102414c03c73fd4", "inhibitor lock released[: {because}]"),
    "shutdown_started": Event(
        "4caafdb3bfa84ac78645f0b632d62976", "node shutdown started: {pods} pods[, {granted_s} s]"
    ),
    "shutdown_resumed": Event(
        "feb09218d2604cd9864db6bea7463e9c", "node shutdown resumed: {pods} pods[, {granted_s} s]"
    ),
    "shutdown_phase": Event("064ec339af254897b4babae6d71a6c9f", "shutdown phase {phase}: {pods} pods"),
    "pod_stopped": Event("927c2c921b0d4ca4b91e1f4b24d25b89", "{pod}: {outcome}"),
    "shutdown_finished": Event("f1de3b6c1a574d638198e3422ba9f941", "node shutdown finished[: {outcomes}]"),
    "shutdown_cancelled": Event("47baa01712ca427ab7457a0753a3ee0e", "node shutdown cancelled"),
    "shutdown_incomplete": Event(
        "121e865419034227b0c3e6bbc62fcecd", "previous node shutdown incomplete[; pods still running: {running}]"
    ),
    "unclean_stop": Event(
        "ab67f455c353420b9bcd9ed60e187168", "unclean node stop detected[; pods running at that time: {running}]"
    ),
    "logind_restart": Event("6c5a232a70924b39a9c45d04f36acf08", "restarting logind[: {because}]"),
    "logind_restart_failed": Event("6ef447f40f174bc59ff6cde22e6f9dcb", "cannot restart logind[: {error}]"),
    "unit_stop_delayed": Event(
        "19066fd6c0114d19b796bb1893a8852f", "stop of the unit delayed by up to {within_s} s[: {because}]"
    ),
    "shutdown_already_done": Event("a15e797622ec45fd8cdc9708b162e0ea", "pods already stopped"),
    "shutdown_crashed": Event("d564df3516464689ba522cc39c4e98c7", "node shutdown crashed; this is a bug"),
    "inhibitor_task_crashed": Event(
        "a8dfa2f9b40040b59f79e41ed5b658a6", "inhibitor task crashed, restarting; this is a bug"
    ),
    "shutdown_delegated": Event(
        "8a1077e6a8b24244907d06da8378ada8", "node shutdown delegated to another process[: {because}]"
    ),
    "shutdown_taken_over": Event(
        "5d0c1e9b7f3a4e2c8b6d4a1f90c37e52",
        "daemon (pid {pid}) without progress for {stalled_s} s is killed; the stop hook stops the remaining pods",
    ),
    "shutdown_pods_unavailable": Event("93874efc3695499fbe6ca7ec80d3ccc2", "cannot list pods[: {error}]"),
    "shutdown_state_not_written": Event(
        "fb028d3e664945048d6ace49592b8ee1", "cannot write the shutdown state[: {error}]"
    ),
    "shutdown_pods_outdated": Event(
        "6344c3c16bfa4038b7bf43ae39f4f68a", "pod list outdated, container runtime does not answer[: {error}]"
    ),
    "shutdown_runtime_unavailable": Event(
        "cbdcb31568044c3eb9a4ed64f7cc603e", "cannot stop pods: container runtime unavailable[: {error}]"
    ),
    "reload_evicts_more": Event("5a1f0e0c8d3b4b0f9f6f6b7c2b8f1d04", "the new settings evict pods[, for {thresholds}]"),
    "control_listening": Event(
        "83566b20e11b40639fbed94b02e50b53", "control socket {socket} listening[, access: {who}]"
    ),
    "control_unavailable": Event("e9d680f787b7410e0de2db1a87cceb54", "control socket {socket} unavailable[: {error}]"),
    "control_request": Event("fd3709c9df1c4e14b9ec0776f72fb7ca", "{method} by {user}[ (pid {pid})]"),
    "control_refused": Event("586c4095c2af4eeefdeb76324f3226f8", "{method} by {user}[ (pid {pid})] denied"),
    "control_failed": Event("976e1470064241ff37b56bee0fc17b0e", "{method} failed; this is a bug"),
    "paused": Event("768e943ada51480986983e32936c62ce", "paused by {by} until {until}[: {why}]"),
    "resumed": Event("cfb7bcee2bfa40f6cb7d27465f17c25f", "resumed by {by}"),
    "pause_unreadable": Event("b96d8ce54b784c3df7a788492bdd0b64", "paused: cannot read the stored pause[: {error}]"),
    "metrics_listening": Event("900106af6fe5462b904f484479d5b733", "metrics and health listening on {listen}"),
    "node_registered": Event("bfed3ddfee934c9e912e2e2132b02786", "node {node} registered ({verdict})[: {because}]"),
    "node_not_registered": Event(
        "cbaf754fe9704f3ebd3dd8f556a9f931", "node {node} not registered ({verdict})[: {because}]"
    ),
    "client_certificate_requested": Event(
        "fc0797019df44ad7983896222cba5281", "client certificate of the node requested[: {request}]"
    ),
    "client_certificate_changed": Event(
        "2585eef1a59c411ab56fc6ea1695b623", "new client certificate of the node in use[: {request}]"
    ),
    "node_cordoned": Event("6f8d06621c28401d93f46bb1d681f1c5", "node {node} cordoned for its shutdown"),
    "node_uncordoned": Event(
        "096efd1a20b9401989c14f3e94852e0f", "node {node} uncordoned: no cordon of the agent is required"
    ),
    "node_labels_changed": Event(
        "da0b9c6bb03c46799fe2c66c354cc93d", "labels of node {node} compared[, changed: {labels}][, kept: {kept}]"
    ),
    "node_tainted": Event("a72fd565740d407e88f720dc06ac67e4", "node tainted[: {taints}]"),
    "node_untainted": Event("2bbb7b0492124d298a2d13f0c97c5b9d", "taints of the node removed[: {taints}]"),
    "shutdown_not_announced": Event(
        "bc8d31b9caaa47ada950ae6780a99343", "shutdown not announced to the API server in time; the shutdown continues"
    ),
    "failed_pod_deleted": Event(
        "763e08c19bbb49bca8bcc2886ce7f160", "failed {pod_namespace}/{pod_name} deleted[: {why}]"
    ),
    "failed_pod_kept": Event("4864c2d8e6eb477399e73b61e62c4472", "failed {pod_namespace}/{pod_name} kept[: {why}]"),
    "would_delete_failed_pod": Event(
        "5affbd10ef514170ba528b1deb67b46d", "failed {pod_namespace}/{pod_name} would be deleted[: {why}]"
    ),
    "pod_status_published": Event(
        "d0518bef3c2142438f3d7ae3614a1364", "status of {pod_namespace}/{pod_name} published: {reason}[: {message}]"
    ),
    "pod_status_dropped": Event(
        "d4b24e67b7904c458c1b314550bd68c4", "status of {pod_namespace}/{pod_name} not published[: {why}]"
    ),
    "node_heartbeat_ended": Event("de0cb46a9198483f99b46056f7731982", "no more heartbeats of this node[: {because}]"),
    "api_request_failed": Event("f3f3601a0bb74b75ad3c039e356b9319", "{error}"),
    "api_request_recovered": Event(
        "4c9971fc99434ffa927f8714f7812d28", "requests to the API server succeed again ({part})"
    ),
    "metrics_unavailable": Event(
        "abe6ef61748d4e48a2a8385dacaa2e70", "metrics and health unavailable[ on {listen}][: {error}]"
    ),
    "metrics_file_written": Event("d3f4408fb9bd494aa87817ac59591207", "metrics written to {path} every {interval_s} s"),
    "metrics_file_unavailable": Event("208aa1b5383042e2bd74980a57d6842b", "metrics not written to {path}[: {error}]"),
    "metrics_certificate_renewed": Event("2ea3189c00604b7c92afa8478c8de2c7", "metrics certificate {path} renewed"),
    "metrics_certificate_not_renewed": Event(
        "e4c5aa79e01d43b99803316ac064ffab", "metrics certificate in force not renewed[: {error}]"
    ),
    "metrics_client_refused": Event("8ced0d589d6642b69dac6a0281dd949b", "metrics client refused by TLS[: {error}]"),
    "metrics_crashed": Event("717d07ee0a5b49ae9d323344d22391f6", "request for {path} crashed; this is a bug"),
}

_PRIORITIES: Final = {"debug": "7", "info": "6", "warning": "4", "error": "3", "critical": "2"}
_FIELDS: Final[Mapping[str, str]] = {
    "pod_uid": "POD_UID",
    "pod_name": "POD_NAME",
    "pod_namespace": "POD_NAMESPACE",
    "container": "CONTAINER_NAME",
    "container_id": "CONTAINER_ID",
    "signal": "SIGNAL",
    "threshold": "THRESHOLD",
    "reason": "REASON",
    "outcome": "OUTCOME",
    "freed_bytes": "BYTES_FREED",
    "frees_bytes": "BYTES_PREDICTED",
    "plan_id": "PLAN_ID",
    "pass_id": "PASS_ID",
}
_FIELDS_OF_KIND: Final[Mapping[str, tuple[str, str]]] = {
    "image": ("IMAGE_ID", "IMAGE_REF"),
    "container": ("CONTAINER_ID", "CONTAINER_NAME"),
    "sandbox": ("SANDBOX_ID", "SANDBOX_NAME"),
    "pod-log-directory": ("LOG_DIRECTORY", "LOG_NAME"),
}


_OPTIONAL: Final = re.compile(r"\[(.*?)\]")


def sentence(name: str, values: Mapping[str, object]) -> str:
    """Return the message of an event.

    Its name and values are returned for an event without a catalogue entry or without a value that its message states:
    a sentence with a gap would be false.
    """
    event = EVENTS.get(name)
    texts = {key: text for key, value in values.items() if (text := _text(value))}
    parts = []
    for number, part in enumerate(_OPTIONAL.split(event.sentence)) if event is not None else ():
        try:
            parts.append(part.format_map(texts))
        except KeyError:
            if number % 2 == 0:  # not an optional part
                parts.clear()
                break
    return "".join(parts) or " ".join([name, *(f"{key}={text}" for key, text in texts.items())])


def journal_fields(values: Mapping[str, object]) -> dict[str, str]:
    """Return an event as the fields of a journal entry.

    Established field names have no prefix, all others start with ``NODEAGENT_``.
    """
    details = {key: value for key, value in values.items() if key not in ("event", "level", "timestamp", "exception")}
    name = str(values.get("event", ""))
    event = EVENTS.get(name)
    message = escape(sentence(name, details))  # journalctl shows "[blob data]" for a message with a control character
    if "exception" in values:
        message = f"{message}\n{escape_lines(str(values['exception']))}"
    fields = {
        "MESSAGE": message,
        "PRIORITY": _PRIORITIES.get(str(values.get("level")), "6"),
        "SYSLOG_IDENTIFIER": "nodeagent",
        "NODEAGENT_EVENT": name,
        **({"MESSAGE_ID": event.message_id} if event is not None else {}),
    }
    by_kind = _FIELDS_OF_KIND.get(str(details.get("kind")))
    if by_kind is not None and "id" in details:
        fields |= {by_kind[0]: str(details["id"]), by_kind[1]: str(details.get("name", ""))}
    for key, value in details.items():
        if value is not None:
            fields[_FIELDS.get(key, f"NODEAGENT_{key.upper()}")] = _text(value)
    return fields


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{each} {key}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
