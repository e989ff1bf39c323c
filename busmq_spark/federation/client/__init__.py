"""Objects of another bus, reached through its federation server, with the methods they have at home
(protocol 5.7 and 5.8).

``federation_clients`` is where ``Bus.federate`` comes in; ``target``, ``socket`` and
``web_socket_pool`` keep web sockets hot; a ``RemoteObjectConnection`` is one object at the server
and its channel on one of them; a ``RemoteReconnector`` makes a new one when the old one is lost.
"""
