"""`make bench`: what a prepare, a start and idling cost, measured against a real etcd and API server. Nothing here gates a test."""
