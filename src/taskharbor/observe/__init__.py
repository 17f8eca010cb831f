"""Logs, metrics and traces: listeners to events. Nothing here runs unless it is enabled."""
