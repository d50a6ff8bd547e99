"""How the broker's actors are watched: metrics, overview, health, how busy they are."""
