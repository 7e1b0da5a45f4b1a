"""The task that watches this node's pods at the API server, across reloads."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

from nodeagent.daemon.kubernetes import POD_WATCH
from nodeagent.daemon.kubernetes.session_task import CHANGE_POLL_S, SessionTask
from nodeagent.daemon.loops import wait_for_any
from nodeagent.errors import StoreError
from nodeagent.observe.watched_pods import list_address, restore_pods

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.config.settings import Settings
    from nodeagent.model.pods import PodSpec


class PodWatchTask(SessionTask):
    """Runs watch sessions while the watch is configured."""

    name = POD_WATCH
    poll_s = CHANGE_POLL_S

    def _off_because(self, settings: Settings) -> str:
        """Return ``not enabled`` if the watch is not configured, such as in a standby configuration; else empty."""
        kubernetes = settings.kubernetes
        return "" if kubernetes.watch_pods and kubernetes.access is not None else "not enabled"

    def _switch_off(self, because: str) -> None:
        super()._switch_off(because)
        self._context.watched_pods.reset()
        self._ran = False

    async def _run_session(self, settings: Settings, stop: asyncio.Event) -> None:
        # imported here, since a daemon without a watch does not need h11, ssl and the API objects
        from nodeagent.daemon.kubernetes.pod_session import PodWatchParts, PodWatchSession  # noqa: PLC0415
        from nodeagent.host.node import node_name  # noqa: PLC0415
        from nodeagent.kube.api_client import ApiClient  # noqa: PLC0415
        from nodeagent.kube.api_credentials import ApiCredentials  # noqa: PLC0415
        from nodeagent.kube.node_api import NodeApi  # noqa: PLC0415
        from nodeagent.kube.pod_api import PodApi, PodWatch  # noqa: PLC0415
        from nodeagent.observe.node_identity import read_foreign  # noqa: PLC0415
        from nodeagent.store.watched_pods import write_watched_pods  # noqa: PLC0415

        access, name = settings.kubernetes.access, node_name(settings.kubelet.node_name)
        if access is None:
            return
        watched = self._context.watched_pods
        if watched.address != list_address(name):
            watched.reset()
            try:
                await asyncio.to_thread(restore_pods, watched, settings.state_directory, name)
            except StoreError as error:
                self._logger.warning("store_notice", notice=str(error))
        client = ApiClient(access, credentials := ApiCredentials(access))

        async def store(pods: tuple[PodSpec, ...], at: datetime) -> None:
            await asyncio.to_thread(write_watched_pods, settings.state_directory, name, pods, at)

        parts = PodWatchParts(
            list_pods=PodApi(client, name).list,
            foreign=partial(read_foreign, NodeApi(client, name)),
            make_watch=lambda: PodWatch(access, credentials, name),
            store=store,
            jitter=random.random,
        )
        session = PodWatchSession(parts, watched, self._context.clock, self._logger, self._context.loop_statuses)
        work = asyncio.create_task(session.run())
        try:
            while not work.done() and self._continues(settings, stop):
                await wait_for_any(CHANGE_POLL_S, stop)
            if work.done():
                work.result()
        finally:
            work.cancel()
            await asyncio.wait({work})
            client.close()
