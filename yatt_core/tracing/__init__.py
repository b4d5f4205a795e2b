"""Traces and logs by OpenTelemetry: spans of iterations, phases and actors' calls, sent to an OTLP address if asked to."""
