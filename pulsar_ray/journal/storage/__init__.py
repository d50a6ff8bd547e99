"""The journal writes to object stores, and to directories that serve as one."""
