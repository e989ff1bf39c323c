"""The ordered core: keys, scripts and flows. The only code that defines how a queue is stored; no
socket, no clock, no loop.

Conventions of every file here: an id range is ``first..last``, both inclusive; an offset is the
last acked id; ``ttl_s`` is in seconds.
"""
