"""``busmq demo``: flight data through queues and Spark, two data centres, and real time.
``spark_*.py`` are the jobs, the rest is around them.
"""
