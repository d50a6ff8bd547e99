"""Measure pulsar_ray against the floor of the same machine: `python -m benchmarks`.

Both are measured in the same run.
"""
