"""The journal of stores in an object store: logic that waits for nothing itself (ADR 0124)."""
