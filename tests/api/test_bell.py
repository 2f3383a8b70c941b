"""``Bell``: rung by threads, heard by one task, under asyncio and trio; no ring is lost."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest

from rase.bell import Bell


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_every_state_that_a_thread_announces_is_seen(backend: str) -> None:
    async def main() -> None:
        bell, state = Bell(), 0

        def work() -> None:
            nonlocal state
            for _ in range(3000):
                state += 1
                bell.ring()

        thread = threading.Thread(target=work)
        with anyio.fail_after(20):
            thread.start()
            while state < 3000:
                await bell.wait()
        thread.join()

    anyio.run(main, backend=backend)


def test_a_ring_before_the_wait_is_heard() -> None:
    async def main() -> None:
        bell = Bell()
        bell.ring()
        bell.ring()
        await asyncio.wait_for(bell.wait(), 5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bell.wait(), 0.05)

    asyncio.run(main())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_after_the_loop_has_ended_a_ring_says_so(backend: str) -> None:
    async def main() -> Bell:
        return Bell()

    bell = anyio.run(main, backend=backend)
    assert not bell.cut
    bell.ring()
    assert bell.cut


def test_without_a_loop_there_is_no_bell() -> None:
    with pytest.raises(RuntimeError):
        Bell()
