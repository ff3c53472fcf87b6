"""Decision traces: what an engine was given, what it decided and what came of it, as JSON lines."""
