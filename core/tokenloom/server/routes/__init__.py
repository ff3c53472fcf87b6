"""The HTTP endpoints, as FastAPI routers over one `Service`."""
