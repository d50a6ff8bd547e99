"""Messages a crashed consumer held come again singly, so that a second crash has a culprit (ADR 0007)."""
