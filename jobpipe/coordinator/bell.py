"""Wakes all tasks that wait for news of a topic."""

from __future__ import annotations

import asyncio

__all__ = ["Bell"]


class Bell:
    """``ring()`` wakes everybody who waits at that moment. Nothing is remembered: waiters re-check."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake all present waiters."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout: float) -> bool:
        """Wait for the next ring, at most ``timeout`` seconds; False when none came."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
