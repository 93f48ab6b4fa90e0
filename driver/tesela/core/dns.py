"""Names as Kubernetes has them: RFC 1123 labels and subdomains.

Rules: k8s.io/apimachinery pkg/util/validation. Who asks says what is wrong in words of its own.
"""

from __future__ import annotations

import re

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(rf"{DNS_LABEL.pattern}(\.{DNS_LABEL.pattern})*")
MAX_SUBDOMAIN = 253


def is_dns_subdomain(text: str, limit: int = MAX_SUBDOMAIN) -> bool:
    """Whether `text` is a subdomain of at most `limit` characters; names of nodes and drivers are."""
    return len(text) <= limit and DNS_SUBDOMAIN.fullmatch(text) is not None
