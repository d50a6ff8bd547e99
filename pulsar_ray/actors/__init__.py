"""Actors that Ray runs, and a control plane that calls them without knowing of Ray."""
