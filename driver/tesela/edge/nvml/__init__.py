"""NVML: the port (`port`), its codes (`codes`), the real backend (`native`) and the watchdog around any of them."""
