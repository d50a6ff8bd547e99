"""Whether the broker works: findings, decided from what was measured."""
