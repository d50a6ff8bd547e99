"""Encrypts messages in producers, and decrypts them in consumers."""
