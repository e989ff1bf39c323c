"""Functions on data frames: events, JSON columns and dead letters in Spark's own expressions."""
