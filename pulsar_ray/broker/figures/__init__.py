"""Figures that actors report, and what a node's metrics are made of (ADR 0057)."""
