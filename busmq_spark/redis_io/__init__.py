"""The servers of queues, and the links to them. The only part that uses redis-py."""
