"""Logs, metrics and traces: listeners to what the rest says. Nothing here runs unless it is asked for."""
