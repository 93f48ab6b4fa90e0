"""A Kubernetes in memory: API objects, a scheduler, a claim controller and a kubelet, for demos and tests."""
