"""Health on a node: who looks at the GPUs, who keeps what was found, who tells. Rules are in `core/health`."""
