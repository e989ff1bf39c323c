"""Objects of another bus, reached through its federation server, with the methods they have at home (protocol 5.7 and 5.8).

``links`` is where ``Bus.federate`` comes in; ``target``, ``socket`` and ``pool`` keep web sockets hot; a ``Line`` is one object's channel on one of
them; a ``Wire`` gives the object a new line when the old one is lost.
"""
