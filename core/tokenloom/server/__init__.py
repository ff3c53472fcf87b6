"""The HTTP server: its processes, its API, and the page at /."""
