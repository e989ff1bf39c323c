"""Whether an origin still has the history that was copied, once the last copied message is gone
there.

A push of ours notes in the clock of its queue which id was the newest in that second
(reading/times_of_ids.py). A mirror keeps one such pair as a witness. An origin that lost messages
and issued their ids again has later pairs for these ids, and none in the second of the witness.

Not provable: ids that only npm busmq pushed, which notes no times; pairs that the clock has
dropped; queues that keep what is acknowledged, whose pairs may be further apart
(lua/include/clock.lua).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from busmq_spark.errors import BusError, LinkLost
from busmq_spark.store.protocol import MirrorOriginReadStore
from busmq_spark.writing.mirror import NO_MARK

log = logging.getLogger("busmq_spark")


class Witness(NamedTuple):
    """A pair of the origin's clock: at ``ms`` the newest id was ``id``."""

    ms: int = 0
    id: int = 0
    """0 where no pair is known."""

    @classmethod
    def parse(cls, text: str) -> Witness:
        """Return the witness that a mirror keeps as ``ms:id``; an empty one for any other text."""
        ms, _, id = text.partition(":")
        return cls(int(ms), int(id)) if ms.isdecimal() and id.isdecimal() else cls()

    def __str__(self) -> str:
        return f"{self.ms}:{self.id}" if self.id else ""


NO_WITNESS = Witness()


class ClockExcerpt(NamedTuple):
    """The pairs of an origin's clock around some ids, read after the messages."""

    born: str = ""
    pairs: Sequence[Witness] = ()

    def witness_upto(self, id: int) -> Witness:
        """Return the last pair whose id is not higher."""
        return next((pair for pair in reversed(self.pairs) if pair.id <= id), NO_WITNESS)

    def contradiction(self, witness: Witness) -> tuple[Witness, Witness] | None:
        """Return the neighbours of the witness that prove another history; return None if nothing
        contradicts it.

        The pair before it shows that the clock has not dropped its second.
        """
        if not witness.id:
            return None
        before = next((pair for pair in reversed(self.pairs) if pair.id < witness.id), None)
        after = next((pair for pair in self.pairs if pair.id >= witness.id), None)
        if before is None or before.ms >= witness.ms:
            return None
        if after is not None and after.ms // 1000 <= witness.ms // 1000:
            return None
        return before, after or NO_WITNESS


NO_CLOCK = ClockExcerpt()


def read_clocks(
    store: MirrorOriginReadStore, wanted: Mapping[str, tuple[Witness, int]]
) -> dict[str, ClockExcerpt]:
    """Return the pairs of each queue from before its witness up to an id. Raises LinkLost.

    Empty where the origin does not tell them: a user without the right, an older server.
    """
    ids = {name: (min(witness.id or upto, upto), upto) for name, (witness, upto) in wanted.items()}
    try:
        answers = store.times(ids) if ids else {}
        found = {
            name: ClockExcerpt(each.born, [Witness(*pair) for pair in each.pairs])
            for name, each in answers.items()
        }
        suspects = [name for name, clock in found.items() if clock.contradiction(wanted[name][0])]
        # A long retention sets pairs apart: there a missing one proves nothing.
        for name, state in (
            store.states(dict.fromkeys(suspects, NO_MARK)).items() if suspects else ()
        ):
            if state.done:
                del found[name]
    except LinkLost:
        raise
    except BusError as error:
        log.debug("the clocks of %s cannot be read: %s", [*ids], error)
        return {}
    return found
