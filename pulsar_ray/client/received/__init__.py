"""Messages that have arrived: blocks, rows, and the queue they wait in."""
