"""The routes under /api, by what they are about."""
