"""Measuring: environments, floors, CPU time, result tables."""
