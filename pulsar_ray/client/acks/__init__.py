"""Acknowledgments and negative acknowledgments on their way."""
