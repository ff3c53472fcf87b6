"""What can be seen of an engine at work: Prometheus metrics, OpenTelemetry spans, a timeline of its steps."""
