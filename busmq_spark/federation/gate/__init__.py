"""Who may connect, do what, and cost how much: handshake, keyring, grants, rights, limits. Both protocols ask here."""
