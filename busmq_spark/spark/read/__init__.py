"""The source: Spark calls it on the driver and in tasks to read queues."""
