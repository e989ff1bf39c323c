"""Jobs of a queue: sent, worked on and waited for."""
