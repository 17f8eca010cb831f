"""One Django migration per numbered migration of TaskHarbor; a test holds the two lists together."""
