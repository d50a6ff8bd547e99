"""Diagnoses a machine that a broker is to run on: measures, then decides."""
