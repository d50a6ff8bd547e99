"""An endless log over ledgers, and the cursors that follow it."""
