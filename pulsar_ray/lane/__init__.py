"""A session's packets on a socket: server, blocking and asyncio connections."""
