"""Guarded calls: at most one thread hangs, and calls succeed again after the hanging call returns."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

from nodeagent import guarded_call
from nodeagent.guarded_call import KERNEL_THREADS, GuardedCall, HangingCallError, call_kernel, start_kernel_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT_S = 0.01


class Hang:
    """A function that hangs until ``released`` is set and returns its number of calls."""

    def __init__(self) -> None:
        self.started, self.released = threading.Event(), threading.Event()
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        self.started.set()
        self.released.wait(20)
        return self.calls


@pytest.fixture
def hang() -> Iterator[Hang]:
    made = Hang()
    yield made
    made.released.set()


def fail() -> int:
    raise PermissionError("denied")


async def test_result_and_error_are_those_of_the_function() -> None:
    guard = GuardedCall[int]()
    assert await guard.run(lambda: 7, within_s=20) == 7
    with pytest.raises(PermissionError, match="denied"):
        await guard.run(fail, within_s=20)
    assert await guard.run(lambda: 8) == 8


async def test_hanging_call_occupies_one_thread_and_later_calls_fail_at_once(hang: Hang) -> None:
    guard = GuardedCall[int]()
    with pytest.raises(HangingCallError, match=r"does not answer within 0\.01 s"):
        await guard.run(hang, within_s=SHORT_S)
    for _ in range(3):
        with pytest.raises(HangingCallError, match="still does not answer"):
            await guard.run(hang, within_s=600)
    assert hang.calls == 1


async def result_after_return(guard: GuardedCall[int], result: int) -> int:
    """Return ``result`` through the guard, with retries while the hanging call has not returned."""
    while True:
        try:
            return await guard.run(lambda: result, within_s=600)
        except HangingCallError:
            await asyncio.sleep(0)


async def test_calls_succeed_after_the_hanging_one_returned(hang: Hang) -> None:
    guard = GuardedCall[int]()
    with pytest.raises(HangingCallError):
        await guard.run(hang, within_s=SHORT_S)
    hang.released.set()
    assert await result_after_return(guard, 9) == 9


async def test_concurrent_calls_run_one_after_the_other(hang: Hang) -> None:
    guard = GuardedCall[int]()
    first = asyncio.create_task(guard.run(hang))
    await asyncio.to_thread(hang.started.wait, 20)
    others = [asyncio.create_task(guard.run(partial(int, text))) for text in ("11", "12")]
    await asyncio.sleep(0)
    hang.released.set()
    assert await asyncio.gather(first, *others) == [1, 11, 12]
    assert hang.calls == 1


async def test_cancelled_caller_leaves_the_call_guarded(hang: Hang) -> None:
    guard = GuardedCall[int]()
    caller = asyncio.create_task(guard.run(hang))
    await asyncio.to_thread(hang.started.wait, 20)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    with pytest.raises(HangingCallError):
        await guard.run(lambda: 1, within_s=SHORT_S)
    hang.released.set()


def test_call_that_hangs_is_guarded_in_a_later_event_loop(hang: Hang) -> None:
    guard = GuardedCall[int]()

    async def start() -> None:
        with pytest.raises(HangingCallError, match="within"):
            await guard.run(hang, within_s=SHORT_S)

    async def again() -> None:
        with pytest.raises(HangingCallError, match="still"):
            await guard.run(hang, within_s=SHORT_S)
        hang.released.set()

    first = asyncio.new_event_loop()
    first.run_until_complete(start())  # its threads continue, unlike with asyncio.run
    asyncio.run(again())
    first.run_until_complete(first.shutdown_default_executor())
    first.close()


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["late", "cancelled"])
async def test_error_of_an_abandoned_call_is_not_logged(
    hang: Hang, caplog: pytest.LogCaptureFixture, is_cancelled: bool
) -> None:
    guard = GuardedCall[int]()

    def hang_and_fail() -> int:
        hang()
        return fail()

    caller = asyncio.create_task(guard.run(hang_and_fail, within_s=600 if is_cancelled else SHORT_S))
    await asyncio.to_thread(hang.started.wait, 20)
    if is_cancelled:
        caller.cancel()
    await asyncio.wait({caller})
    hang.released.set()
    assert await result_after_return(guard, 3) == 3
    assert is_cancelled or isinstance(caller.exception(), HangingCallError)
    del caller
    gc.collect()  # asyncio logs an unretrieved error at deletion of its future
    assert not caplog.records


# ---- a node without free PIDs


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_kernel_files_are_read_without_a_free_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_call, "_KERNEL", ThreadPoolExecutor(KERNEL_THREADS))
    start_kernel_threads()
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    together = threading.Barrier(KERNEL_THREADS)
    calls = (call_kernel(together.wait, 20) for _ in range(KERNEL_THREADS))
    assert sorted(await asyncio.gather(*calls)) == list(range(KERNEL_THREADS))


async def test_guarded_call_without_a_free_pid_is_late_and_succeeds_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_call, "_GUARDED", ThreadPoolExecutor(1))
    guard = GuardedCall[int]()
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(HangingCallError):
            await guard.run(lambda: 1, within_s=SHORT_S)
    other = GuardedCall[int]()
    assert await other.run(lambda: 2, within_s=20) == 2
    assert await result_after_return(guard, 3) == 3
