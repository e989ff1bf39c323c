"""Access to the server, rights and cost: handshake, keyring, grants, rights, limits. Both protocols
ask here.
"""
