"""Input as an attacker makes it: sound samples, cut, bent and spliced. Seeded, so that what fails
once fails again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence

SEED = int(os.environ.get("BUSMQ_ABUSE_SEED", "20261121"))
SCRAPS = [
    *(
        b"[",
        b"]",
        b"{",
        b"}",
        b'"',
        b":",
        b",",
        b"\n",
        b"\0",
        b"\xff",
        b"\\",
        b"1",
        b"2",
        b"-",
        b".",
        b"%",
        b"=",
        b"&",
        b" ",
    ),
    *(
        b"[" * 1200,
        b'{"a":' * 1200,
        b"1e999",
        b"-0",
        b"9" * 400,
        b"9" * 5000,
        b"NaN",
        b"Infinity",
        b"null",
        b"true",
        b"1.5",
        b"2147483648",
    ),
    *(
        b"\\ud800",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x98\x80",
        b"\xc3",
        b'"__proto__"',
        b'"constructor"',
        b'"0"',
        b'"method"',
        b'"callbacks"',
    ),
    *(b'["0","0"]', b"[Function]", b"[Circular]", b"%00", b"%ff", b"\r\n", b"x" * 2000),
]


class Bender:
    """Makes hostile input out of sound ``samples``."""

    def __init__(self, samples: Sequence[bytes], seed: int = SEED) -> None:
        self._samples, self._chance = samples, random.Random(seed)

    def inputs(self, count: int) -> Iterator[bytes]:
        """So many of them."""
        for _ in range(count):
            yield self.one()

    def one(self) -> bytes:
        """Sound now and then; most are bent once or twice."""
        chance = self._chance
        data = chance.choice(self._samples)
        for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 5))):
            data = self._bent(data)
        return data

    def _bent(self, data: bytes) -> bytes:
        chance = self._chance
        at = int(chance.random() * (len(data) + 1))
        end = at + int(chance.random() * 12)
        match int(chance.random() * 7):
            case 0:
                return data[:at]
            case 1:
                return data[:at] + bytes([int(chance.random() * 256)]) + data[at + 1 :]
            case 2 | 3:
                return (
                    data[:at] + chance.choice(SCRAPS) + data[end if chance.random() < 0.5 else at :]
                )
            case 4:
                return data[:at] + data[end:]
            case 5:
                return data[:end] + data[at:]
            case _:
                other = chance.choice(self._samples)
                return data[:at] + other[int(chance.random() * (len(other) + 1)) :]
