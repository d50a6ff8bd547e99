"""A client's ties: connections, opening again, closing, forks."""
