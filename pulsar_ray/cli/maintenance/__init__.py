"""Commands that check, mend and copy the data directory of a broker."""
