"""Message trace: what became of each message, as the official tools and dashboard show it."""
