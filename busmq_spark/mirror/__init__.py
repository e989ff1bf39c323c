"""Mirrors between data centres: a process that copies queues of another data centre here
(writing/mirror.py says what a mirror is).
"""
