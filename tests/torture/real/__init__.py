"""Rounds on a Ray of their own, whose raylet, GCS and worker processes are killed and stopped."""
