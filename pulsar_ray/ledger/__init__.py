"""One ledger: its directory, segment files, recovery and readers."""
