"""Where handlers run: in the event loop, in a thread, or in a process of their own."""
