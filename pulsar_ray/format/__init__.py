"""The only code that knows stored bytes: segments, frames, blocks and log records."""
