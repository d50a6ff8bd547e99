"""HTTP for those outside Ray: Pulsar's administration by REST, and its WebSocket API."""
