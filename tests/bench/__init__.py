"""`make bench`: what a prepare, a start and idling cost, against a real etcd and API server. It gates no test."""
