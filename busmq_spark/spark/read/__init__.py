"""The source: what Spark calls on the driver and in tasks to read queues."""
