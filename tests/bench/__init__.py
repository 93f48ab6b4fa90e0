"""`make bench`: the design's budgets, measured against a real etcd and API server. Nothing here gates a test."""
