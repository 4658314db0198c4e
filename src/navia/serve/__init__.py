"""The same loop, live: a service that answers over HTTP and adapts behind its answers."""
