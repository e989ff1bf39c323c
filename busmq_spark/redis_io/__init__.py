"""Where queues live and how to talk to those servers. The only part that uses redis-py."""
