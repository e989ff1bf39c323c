"""How long a fault lasts."""

from __future__ import annotations

import random
import threading

_CLOCK = threading.Event()


def pause(chance: random.Random, least: float, most: float) -> None:
    """The fault itself lasts so long, or comes so much later."""
    _CLOCK.wait(chance.uniform(least, most))
