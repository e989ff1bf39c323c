"""The federation server: its sockets, channels, and the objects that it serves."""
