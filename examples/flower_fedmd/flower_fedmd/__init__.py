"""Clients with networks of their own teach each other through predictions on public pictures."""
