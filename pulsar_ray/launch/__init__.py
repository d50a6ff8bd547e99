"""Finding or starting a broker, as clients and commands need it."""
