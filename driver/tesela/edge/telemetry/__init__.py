"""What leaves the driver for those who watch it: metrics, traces, log lines, probes. No rule is decided here."""
