"""Federation: objects of a bus for peers that cannot reach its Redis, over web sockets (protocol chapter 5).

Codecs (``mux``, ``dnode``, ``creation``) are values without a socket; ``server`` and ``client`` move them.
"""
