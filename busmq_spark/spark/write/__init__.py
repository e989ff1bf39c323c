"""The sink: what Spark calls in tasks and on the driver to write to queues."""
