"""Persisted objects, and the messages of services and channels."""
