"""Reading segments that are in the object store alone (ADR 0142)."""
