"""A harbor on a cluster: every queue in a slot of its own."""
