"""The HTTP API: `create_app(harbor)` makes an ASGI application that serves it at any path."""
