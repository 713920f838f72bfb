"""Handles of asynchronous calls in asyncio."""

from __future__ import annotations

import types
import typing

from . import _core

Handle = _core.Handle


def _await(self: Handle[typing.Any]) -> typing.Generator[typing.Any, None, typing.Any]:
    """Waits for the call without blocking the event loop, and returns its result."""
    import asyncio
    import os

    if not self.done():
        loop = asyncio.get_running_loop()
        finished = loop.create_future()
        # Several tasks may wait for one call, and a loop has one reader for each descriptor.
        descriptor = os.dup(self._completion_descriptor())

        def wake() -> None:
            if not finished.done():
                finished.set_result(None)

        loop.add_reader(descriptor, wake)
        try:
            yield from finished.__await__()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    return self.wait()


Handle.__await__ = _await  # type: ignore[method-assign]
# Annotations may say what a handle's result is: Handle[int].
Handle.__class_getitem__ = classmethod(types.GenericAlias)  # type: ignore[attr-defined]
