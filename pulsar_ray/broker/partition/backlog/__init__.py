"""The backlogs of a partition's subscriptions: messages that expire, and quotas."""
