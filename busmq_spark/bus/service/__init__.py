"""Requests and their replies over queues."""
