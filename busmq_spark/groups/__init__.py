"""Share a queue: groups with leases, topics, jobs and dead letters."""
