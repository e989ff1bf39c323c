"""Topics: queues by partition, their groups and their jobs."""
