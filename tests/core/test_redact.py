"""What is left out of a bundle, and what is not."""

from __future__ import annotations

import re
import time

import pytest
from tesela.core.redact import LEFT_OUT, redact_bytes, redact_object, redact_text

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzYSJ9.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "secret",
    [
        f"Bearer {TOKEN}",
        TOKEN,
        'password: "correct-horse"',
        "client_secret=correct-horse",
        '{"token":"correct-horse"}',
        "https://user:correct-horse@example.com/",
        "-----BEGIN RSA PRIVATE KEY-----\ncorrect-horse\n-----END RSA PRIVATE KEY-----",
        "x-api-key: correct-horse",
        'password: "one two correct-horse"',
        r'{"message":"{\"token\": \"correct-horse\"}"}',
        r'{"message":"{\"a\":\"{\\\"password\\\":\\\"a correct-horse\\\"}\"}"}',
        "client-key-data: correct-horse",
        "Authorization: Digest username=a, response=correct-horse",
        "Cookie: a=b; session=correct-horse",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    ],
)
def test_what_looks_like_a_secret_goes(secret):
    redacted = redact_text(f"before {secret} after")

    assert not re.search("AKIA|ghp_", redacted)
    assert ("correct-horse" in redacted, TOKEN in redacted, LEFT_OUT in redacted) == (False, False, True)


@pytest.mark.parametrize(
    "text",
    [
        '{"moduleToken":"1700000000"}',
        '{"apiGroup":"rbac.authorization.k8s.io","token":null,"secrets":[{"name":"x"}]}',
        '{"automountServiceAccountToken": false}',
        "GPU-5b1d6f0e-0000-4000-8000-000000000003 is wedged",
        "claim default/one (8a1c0f5e-0000-4000-8000-000000000001): prepared gpu-0",
        "https://10.0.0.1:6443/apis/resource.k8s.io/v1",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact_text(text) == text


def test_noise_is_searched_and_stays_noise():
    noise = bytes(range(256))

    assert redact_bytes(noise + b'{"token":"correct-horse"}' + noise) == noise + b'{"token":"(left-out)"}' + noise


@pytest.mark.parametrize("piece", ["a.", "a-", "token", "-----BEGIN ", "eyJ", "://a:", "bearer ", 'token:"', "\\"])
def test_no_text_holds_it_up(piece):
    began_s = time.process_time()
    redact_text(piece * (200_000 // len(piece)))

    assert time.process_time() - began_s < 5  # a search that tries every part of a word at every place takes minutes


def test_an_object_loses_what_is_not_ours():
    claim = {
        "metadata": {
            "name": "one",
            "managedFields": [{"manager": "kubectl"}],
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{...}",
                "resource.kubernetes.io/pod-claim-name": "gpu",
            },
        },
        "spec": {
            "config": [
                {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}},
                {"opaque": {"driver": "other.example.com", "parameters": {"psk": "1234"}}},
            ]
        },
    }

    assert redact_object(claim, "gpu.nvidia.com") == {
        "metadata": {"name": "one", "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"}},
        "spec": {
            "config": [
                {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}},
                {"opaque": {"driver": "other.example.com", "parameters": LEFT_OUT}},
            ]
        },
    }
