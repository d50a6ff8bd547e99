"""The protocol between a client and an actor that it is attached to.

Pure, both ends.
"""
