"""The Spark source and sink: the only part that imports pyspark. Start at ``data_source.py``."""
