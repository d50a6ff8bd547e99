"""Rounds of random work under random faults, each judged by the history of what it promised."""
