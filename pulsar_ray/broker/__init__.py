"""The broker without Ray: what its actors do, a room for each owner of state."""
