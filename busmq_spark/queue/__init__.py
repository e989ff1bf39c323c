"""The queue as it is stored: keys, messages, commands and scripts. It is the only code that defines
how a queue is stored; it has no socket, no clock and no loop.

Conventions of this room and of ``reading``, ``routing``, ``groups``, ``writing``, ``objects``: an
id range is ``first..last``, both inclusive; an offset is the last acked id; ``ttl_s`` is in
seconds. Each of these rooms has its Lua scripts in ``lua/``.
"""
