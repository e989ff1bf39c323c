"""Read a queue: ranges, readers and their acks, offsets, times, and the plan of a batch."""
