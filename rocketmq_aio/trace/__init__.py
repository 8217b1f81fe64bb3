"""Message trace in the format of the official tools and dashboard."""
