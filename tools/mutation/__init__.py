"""Mutation testing, in parts: what may be changed, which tests judge it, how they run, the report."""
