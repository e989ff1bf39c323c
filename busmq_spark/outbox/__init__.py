"""A durable queue on the local disk that forwards to a bus: once a call has returned, its message
arrives, whatever is down meanwhile.

The way of a message: ``outbox.py`` (what a program holds) hands it to ``group_commit.py``, which
writes those of all callers in one transaction; ``forwarder.py`` sends it on to a bus of
``target_bus.py``, and notes what was confirmed. ``sql.py`` has all statements, ``schema.py`` the
file, ``lock.py`` who may write to it, ``report.py`` what the command line shows.
"""
