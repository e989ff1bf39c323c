"""Federation: objects of a bus for peers that cannot reach its Redis, over web sockets (protocol
chapter 5).

``gate``: who may connect, do what, and cost how much; for both protocols. The protocol of npm
busmq: ``npm_wire`` are its codecs, ``serve`` the server, ``client`` the client of ``bus.federate``.
And ``busmq.bulk.v1``, for Spark: ``bulk``; where a server does not speak it, ``npm`` reads and
writes by npm's.
"""
