"""Events, and the queues that they go to."""
