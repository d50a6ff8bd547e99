"""Checks data directories, repairs them, and copies them, beside a broker or without one."""
