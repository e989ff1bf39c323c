"""Cutting a stream of bytes into messages. Bytes in, bytes out; only the separator means
something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

READ_BYTES = 1024 * 1024


def split_messages(
    read: Callable[[int], bytes], separator: bytes
) -> Iterator[tuple[list[bytes], int]]:
    """Messages as they arrive, in runs, each run with the number of bytes read for it.

    ``read`` returns what is there (``read1`` of a pipe), so a line is handed on as soon as it is
    complete. A separator at the very end ends the last message and starts no empty one.
    """
    rest: list[bytes] = []
    while block := read(READ_BYTES):
        first, *others = block.split(separator)
        rest.append(
            first
        )  # joined only when complete: a message of many blocks is not copied once a block
        if others:
            yield [b"".join(rest), *others[:-1]], len(block)
            rest = [others[-1]]
        else:
            yield [], len(block)
    if last := b"".join(rest):
        yield [last], 0
