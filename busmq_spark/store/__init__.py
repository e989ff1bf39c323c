"""The place of the messages: the operations of a source and a sink on a queue, and their
implementation in Redis. Federation serves the same to other data centres.
"""
