"""The edges: one file or folder per foreign thing (NVML, the host, the API server, the kubelet, files on disk)."""
