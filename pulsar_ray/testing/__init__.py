"""Clocks, stub clusters and faults for tests of code on top of pulsar_ray."""
