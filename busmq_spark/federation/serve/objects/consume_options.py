"""Options of ``consume`` as a peer gives them, for queues and channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from busmq_spark.federation.serve.objects.base import whole_number_option

if TYPE_CHECKING:
    from busmq_spark.bus.queue.consume import ConsumeKeywords


def consume_keywords(options: dict[str, Any]) -> ConsumeKeywords:
    """Return npm's options of ``consume`` as ours.

    An option without a meaning beside the others is ignored, as npm does.
    """
    most, reliable = options.get("max"), options.get("reliable") is True
    remove = options.get("remove", True) is not False
    found: ConsumeKeywords = {"remove": remove, "reliable": reliable}
    if most is not None:
        found["max"] = whole_number_option(options, "max", -1)
    if not remove:
        found["index"] = whole_number_option(options, "index", 0)
    if reliable:
        found["last"] = whole_number_option(options, "last", 0)
        found["wait"] = options.get("wait") is not False  # ours: npm knows no lease
    return found
