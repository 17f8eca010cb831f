"""How a job gets in, and how to ask about it."""
