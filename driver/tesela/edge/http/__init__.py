"""Serving HTTP: probes and metrics of the node program, reviews of the admission program. No rule is decided here."""
