"""A real one-node Kubernetes for the end-to-end tests, and a node's GPUs and driver to try on it.

Reading order: `build` (binaries, once), `sandbox` (namespaces that hold everything), `processes`, `certificates`,
`cluster` (`Cluster.up`), `images`, `api`, `pods`, then `simulator` and `driver`, which stand for one node's hardware
and software. Nothing here knows a scenario; those are the test_*.py files.
"""
