"""Administration of tenants, namespaces, topics, subscriptions, and their stats."""
