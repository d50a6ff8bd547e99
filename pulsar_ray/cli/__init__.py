"""The pulsar-ray command, one module per command group."""
