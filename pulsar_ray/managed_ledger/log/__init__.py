"""A partition's log: ledgers, manifest, appending, recovery, trimming."""
