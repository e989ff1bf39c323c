"""The Spark source and sink: the only part that knows pyspark. Start at ``source.py``."""
