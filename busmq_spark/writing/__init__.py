"""Write to a queue exactly once: the sink, senders with numbers, and mirrors."""
