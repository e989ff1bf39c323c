"""Checks of a Redis, a bus, a federation server and a Spark before something fails.

Rule 1. A check is pure: ``redis.py``, ``bus.py``, ``federation.py`` and ``spark.py`` turn facts
        into findings. Only ``gather.py`` asks servers, files and clocks.
Rule 2. A check that cannot be made is a finding, too, with the level ``unknown``.
Rule 3. A finding contains no credentials, and no argument of a command that Redis logged.
"""
