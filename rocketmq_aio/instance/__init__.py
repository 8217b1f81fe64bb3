"""What the clients of a process share: routes, heartbeats, typed broker calls, commands."""
