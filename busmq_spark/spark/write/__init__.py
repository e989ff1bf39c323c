"""The sink: Spark calls it in tasks and on the driver to write to queues."""
