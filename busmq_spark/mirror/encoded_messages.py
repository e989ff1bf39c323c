"""Messages on their way: as Arrow arrays when they are read, then as words of the command that
appends them; without an object for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from busmq_spark.queue.message import CHUNK_BYTES, CHUNK_MESSAGES
from busmq_spark.store.redis_range import whole_numbers

_CR_LF = b"\r\n"


def _arrow_scalar(text: bytes) -> Any:
    """An Arrow scalar, without ``pa.scalar``, which imports pandas where it is installed (see
    whole_numbers).
    """
    return pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(np.array([0, len(text)], np.int32)), pa.py_buffer(text)]
    )[0]


_EMPTY_TEXT, _DOLLAR_SIGN, _LINE_END, _LINE_END_AND_DOLLAR = map(
    _arrow_scalar, (b"", b"$", _CR_LF, b"\r\n$")
)


@dataclass(frozen=True, slots=True)
class EncodedMessages:
    """Consecutive messages, the first of them with id ``first``; each element of ``words`` has id
    and value of one, as a command has them.
    """

    first: int
    words: Any

    @classmethod
    def of(cls, first: int, values: Any) -> EncodedMessages:
        """``values`` is an Arrow array of binary, in the order of ids."""
        values = values.cast(pa.binary())
        ids = whole_numbers(first, first + len(values)).cast(pa.string()).cast(pa.binary())
        columns = (
            _DOLLAR_SIGN,
            _lengths(ids),
            _LINE_END,
            ids,
            _LINE_END_AND_DOLLAR,
            _lengths(values),
            _LINE_END,
            values,
            _LINE_END,
        )
        # Arrow's own pool keeps what it once had, for each thread.
        return cls(
            first,
            pc.binary_join_element_wise(*columns, _EMPTY_TEXT, memory_pool=pa.system_memory_pool()),
        )

    def __len__(self) -> int:
        return len(self.words)

    @property
    def last(self) -> int:
        """The id of the last one."""
        return self.first + len(self.words) - 1

    def value(self, id: int) -> bytes:
        """The value of one of them."""
        words: bytes = self.words[id - self.first].as_py()
        return words.split(_CR_LF, 3)[3][: -len(_CR_LF)]

    def rows_after(self, id: int) -> EncodedMessages:
        """Return the messages with a higher id; this may be none."""
        gone = min(max(0, id + 1 - self.first), len(self.words))
        return EncodedMessages(self.first + gone, self.words[gone:])

    def chunks(self) -> Iterator[tuple[int, int, memoryview]]:
        """Runs that go into one call each: the last id, how many, and their words."""
        _, borders, data = self.words.buffers()
        ends = np.frombuffer(borders, np.int32)[
            self.words.offset : self.words.offset + len(self.words) + 1
        ]
        start, bytes_ = 0, memoryview(data)
        while start < len(self.words):
            fitting = int(np.searchsorted(ends, ends[start] + CHUNK_BYTES, "right")) - 1
            stop = max(start + 1, min(start + CHUNK_MESSAGES, fitting))
            yield self.first + stop - 1, stop - start, bytes_[int(ends[start]) : int(ends[stop])]
            start = stop


def _lengths(texts: Any) -> Any:
    """Of each, in decimal digits."""
    return pc.binary_length(texts).cast(pa.string()).cast(pa.binary())
