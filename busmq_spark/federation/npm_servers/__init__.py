"""Spark's end at servers that speak nothing but npm's protocol: queues read and appended to as a
Node peer would.
"""
