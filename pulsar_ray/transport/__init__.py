"""Finding and attaching to actors, the carriers of a session, Ray's errors translated."""
