"""A queue of the bus: pushed to, consumed, and read by groups."""
