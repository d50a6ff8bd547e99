"""How an actor serves clients: sessions, its owner loop, the carrier over calls."""
