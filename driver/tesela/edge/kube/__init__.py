"""The Kubernetes API: the port (`port`) and the official client behind it (`client`)."""
