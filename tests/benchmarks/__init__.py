"""Benchmarks: each prints ratios against something measured in the same run. ``make bench`` runs
them all.
"""
