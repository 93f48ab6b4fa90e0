"""The Helm chart without a cluster: what it renders equals what kustomize builds, and what it refuses it says why."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.harness import build

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "daemonset" / "chart" / "tesela"
OVERLAYS = ROOT / "daemonset" / "overlays"
COMPONENTS = ROOT / "daemonset" / "components"
CA_CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
CATALOGUE = ROOT / "deviceclasses"
OF_HELM = {"app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "helm.sh/chart"}
FAMILIES = sorted(path.stem for path in (CATALOGUE / "profiles").glob("*.yaml") if path.stem != "kustomization")


def run(*command: str | Path, ok: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60)
    assert (done.returncode == 0) is ok, done.stderr or done.stdout
    return done.stdout if ok else done.stderr


@cache
def kustomize(folder: Path) -> dict[tuple[str, ...], Json]:
    return index(run(build.build_cluster() / "kubectl", "kustomize", folder))


def template(*flags: str, namespace: str = "tesela", hooks: bool = False) -> dict[tuple[str, ...], Json]:
    command = [build.build_helm(), "template", "tesela", CHART, "--namespace", namespace, *flags]
    return index(run(*command, *([] if hooks else ["--no-hooks"])))


def index(text: str) -> dict[tuple[str, ...], Json]:
    """The objects of a stream by kind, namespace and name, as far as the two ways to deploy shall agree."""
    found = {}
    for one in filter(None, yaml.safe_load_all(text)):
        normal = normalize(one)
        key = (normal["kind"], normal["metadata"].get("namespace", ""), normal["metadata"]["name"])
        assert key not in found, f"{key} stands there twice"
        found[key] = normal
    return found


def normalize(obj: Json) -> Json:
    """Without Helm's labels, and without what makes a changed policy roll the DaemonSet: each has a way of its own."""
    text = re.sub(r'"(tesela-policy)-[a-z0-9]{10}"', r'"\1"', json.dumps(obj))
    normal: Json = json.loads(text, object_hook=sort_lists)
    labels = normal["metadata"].get("labels", {})
    normal["metadata"]["labels"] = {name: value for name, value in labels.items() if name not in OF_HELM}
    annotations = normal["metadata"].pop("annotations", {})
    normal["metadata"]["annotations"] = {k: v for k, v in annotations.items() if not k.startswith("helm.sh/")}
    normal.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations", {}).pop("checksum/policy", None)
    if normal["kind"] == "ConfigMap":
        normal["data"] = {name: yaml.safe_load(content) for name, content in normal["data"].items()}
    return normal


def sort_lists(obj: Json) -> Json:
    """Lists that Kubernetes merges by a key have no order of their own."""
    for name, key in {"volumes": "name", "volumeMounts": "name", "env": "name", "containers": "name"}.items():
        if isinstance(obj.get(name), list) and all(isinstance(one, dict) for one in obj[name]):
            obj[name] = sorted(obj[name], key=lambda one: one.get(key, ""))
    return obj


def without(objects: dict[tuple[str, ...], Json], *kinds: str) -> dict[tuple[str, ...], Json]:
    return {key: one for key, one in objects.items() if key[0] not in kinds}


@pytest.mark.parametrize(("overlay", "flags"), [("production", ()), ("simulated", ("--set", "gpus=simulated"))])
def test_the_chart_renders_what_the_overlay_builds(overlay: str, flags: tuple[str, ...]) -> None:
    """But for the namespace, which Helm makes itself, and the classes, which lie in a folder of their own."""
    assert without(template(*flags), "DeviceClass") == without(kustomize(OVERLAYS / overlay), "Namespace")


def test_its_check_before_a_removal_is_the_component() -> None:
    """As hooks, which are there at that moment alone."""
    hooks = {key: one for key, one in template(hooks=True).items() if key not in template()}

    assert hooks == kustomize(COMPONENTS / "uninstall-check")


def test_its_check_waits_for_no_node_that_is_down() -> None:
    """Their taints keep it away; the ones it bears are of nodes that can answer."""
    pod = template(hooks=True)["Job", "tesela", "tesela-uninstall-check"]["spec"]["template"]["spec"]

    assert {one["key"] for one in pod["tolerations"]} == {
        "node.kubernetes.io/unschedulable",
        "nvidia.com/gpu",
        "node-role.kubernetes.io/control-plane",
    }


def test_its_pod_monitor_is_the_one_that_is_shipped() -> None:
    (shipped,) = index((ROOT / "daemonset" / "monitoring" / "podmonitor.yaml").read_text()).values()

    rendered = template("--set", "podMonitor.create=true,podMonitor.labels.release=prometheus")

    shipped["metadata"]["labels"]["release"] = "prometheus"
    assert rendered["PodMonitor", "tesela", "tesela"] == shipped


def test_it_warns_where_the_component_does(tmp_path: Path) -> None:
    rendered = template("--set", "configAdmission.action=Warn")

    assert without(rendered, "DeviceClass") == without(
        kustomize(render_overlay(tmp_path, ["config-warnings"])), "Namespace"
    )


@pytest.mark.parametrize("certificate", ["cert-manager", "by-hand"])
def test_its_webhook_is_the_component(certificate: str, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text(CA_CERTIFICATE)
    values = {
        "cert-manager": ("--set", "admissionWebhook.certManager=true"),
        "by-hand": ("--set-file", f"admissionWebhook.caCertificate={tmp_path / 'ca.crt'}"),
    }[certificate]
    components = {"cert-manager": ["admission-webhook", "admission-webhook-cert-manager"]}
    expected = kustomize(render_overlay(tmp_path, components.get(certificate, ["admission-webhook"])))
    if certificate == "by-hand":
        (webhook,) = expected["ValidatingWebhookConfiguration", "", "tesela-configs"]["webhooks"]
        webhook["clientConfig"]["caBundle"] = base64.b64encode(CA_CERTIFICATE.encode()).decode()

    rendered = template("--set", "admissionWebhook.create=true", *values)

    assert without(rendered, "DeviceClass") == without(expected, "Namespace")


def render_overlay(folder: Path, components: list[str]) -> Path:
    """A kustomization as a user writes it: the overlay for production, and components. It takes no absolute path."""
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(OVERLAYS / "production", folder.resolve())],
        "components": [os.path.relpath(COMPONENTS / name, folder.resolve()) for name in components],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(document))
    return folder


def test_a_webhook_without_a_certificate_is_refused() -> None:
    answer = run(build.build_helm(), "template", "tesela", CHART, "--set", "admissionWebhook.create=true", ok=False)

    assert "admissionWebhook: the API server must know who signed its certificate: give caCertificate" in answer


def test_its_classes_are_those_of_the_catalogue() -> None:
    rendered = template("--set", f"deviceClasses.families={{{','.join(FAMILIES)}}}")

    assert {key: one for key, one in rendered.items() if key[0] == "DeviceClass"} == {
        **kustomize(CATALOGUE),
        **kustomize(CATALOGUE / "profiles"),
    }


def test_another_namespace_is_used_everywhere() -> None:
    webhook = "admissionWebhook.create=true,admissionWebhook.certManager=true"
    objects = template("--set", f"gpus=simulated,{webhook}", namespace="gpu-system", hooks=True)

    text = json.dumps(list(objects.values()))
    assert {namespace for _, namespace, _ in objects} == {"", "default", "gpu-system"}
    assert "serviceaccount:tesela:" not in text
    assert not re.search(r'"namespace": "tesela"|tesela\.svc|kube-system", "tesela"|: "tesela/', text)


def test_a_changed_policy_changes_the_pods() -> None:
    def checksum(*flags: str) -> str:
        text = run(build.build_helm(), "template", "tesela", CHART, *flags)
        return re.findall(r"checksum/policy: (\w+)", text)[0]

    assert checksum() != checksum("--set", "policy.rules[0].mode=static")


def test_values_reach_their_place() -> None:
    values = {
        "image": {"repository": "registry.example.com:5000/gpu/tesela", "tag": "0.2.0", "digest": f"sha256:{'a' * 64}"},
        "imagePullSecrets": [{"name": "registry"}],
        "driverRoot": "/run/nvidia/driver",
        "kubeletRoot": "/var/lib/k0s/kubelet",
        "cdiRoot": "/etc/cdi",
        "driverLibraries": "mount",
        "besideDevicePlugin": True,
        "nodePlugin": {
            "affinity": None,
            "nodeSelector": {"pool": "gpus"},
            "priorityClassName": "system-node-critical",
            "metricsPort": 9500,
            "logLevel": "debug",
            "extraArgs": ["--nvml-timeout=30"],
            "extraEnv": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector.monitoring:4318"}],
        },
    }
    objects = template("--set-json", ",".join(f"{key}={json.dumps(value)}" for key, value in values.items()))

    pod = objects["DaemonSet", "tesela", "tesela-node-plugin"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert container["image"] == f"registry.example.com:5000/gpu/tesela:0.2.0@sha256:{'a' * 64}"
    assert (pod["imagePullSecrets"], pod["nodeSelector"]["pool"]) == ([{"name": "registry"}], "gpus")
    assert (paths["driver-root"], paths["cdi"]) == ("/run/nvidia/driver", "/etc/cdi")
    assert paths["registry"] == "/var/lib/k0s/kubelet/plugins_registry"
    assert {"--driver-libraries=mount", "--beside-device-plugin"} <= set(container["args"])
    assert {"--driver-root=/run/nvidia/driver", "--cdi-dir=/etc/cdi", "--nvml-timeout=30"} <= set(container["args"])
    assert (env["TESELA_KUBELET_ROOT"], env["TESELA_METRICS_PORT"]) == ("/var/lib/k0s/kubelet", "9500")
    assert (env["TESELA_LOG_LEVEL"], "affinity" in pod) == ("debug", False)
    assert ("PriorityClass", "", "tesela-node-plugin") not in objects


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("nodeSelector", "kubernetes.io/os"),
        ("nodeSelector", "gpu.nvidia.com/simulated"),
        ("podLabels", "app.kubernetes.io/name"),
        ("podAnnotations", "kubectl.kubernetes.io/default-container"),
    ],
)
def test_a_value_that_the_chart_has_too_changes_nothing(value: str, key: str) -> None:
    """A key twice would be no YAML, and another name of the pods would take them from their DaemonSet."""
    given = f"nodePlugin.{value}={json.dumps({key: 'other'})}"

    rendered = [
        run(build.build_helm(), "template", "tesela", CHART, "--set=gpus=simulated", *flags)
        for flags in ((), ("--set-json", given))
    ]

    assert rendered[0] == rendered[1]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--set", "gpus=fake"), "at '/gpus': value must be one of 'host', 'simulated'"),
        (("--set", "networkPolicy=null"), "at '': missing property 'networkPolicy'"),
        (("--set", "nodePlugin.metricsPort=null"), "at '/nodePlugin': missing property 'metricsPort'"),
        (("--set", "imagee.tag=1"), "additional properties 'imagee' not allowed"),
        (("--set", "kubeletRoot=var/lib"), "at '/kubeletRoot': 'var/lib' does not match pattern"),
        (("--set", "nodePlugin.metricsPort=0"), "at '/nodePlugin/metricsPort': minimum: got 0, want 1"),
        (("--set", "policy.rules[0].mode=all"), "at '/policy/rules/0/mode': value must be one of 'whole', 'onDemand'"),
        (("--set", "policy.rule=x"), "at '/policy': additional properties 'rule' not allowed"),
        (("--set", "deviceClasses.families={h100}"), "at '/deviceClasses/families/0': value must be one of 'a30-24gb'"),
        (("--set", "nodePlugin.extraArgs={nvml}"), "at '/nodePlugin/extraArgs/0': 'nvml' does not match pattern"),
        (
            ("--set-json", 'nodePlugin.extraEnv=[{"name":"NODE_NAME"}]'),
            "at '/nodePlugin/extraEnv/0/name': 'not' failed",
        ),
        (
            ("--kube-version", "1.33.4"),
            "chart requires kubeVersion: >=1.34.0-0 which is incompatible with Kubernetes v1.33",
        ),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_a_wrong_value_is_refused_by_its_path(flags: tuple[str, ...], said: str) -> None:
    answer = run(build.build_helm(), "template", "tesela", CHART, *flags, ok=False)

    assert said in answer


class OldApi(BaseHTTPRequestHandler):
    """Discovery of an API server that serves no group at all."""

    def do_GET(self) -> None:
        answers: dict[str, Json] = {
            "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
        }
        found = answers.get(self.path.partition("?")[0])
        body = json.dumps(found or {"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_a_cluster_without_the_api_is_told_so_before_anything_is_made() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), OldApi) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = ("--kube-apiserver", f"http://127.0.0.1:{server.server_port}")
        answer = run(build.build_helm(), "install", "tesela", CHART, "--dry-run=server", *address, ok=False)
        server.shutdown()

    assert "this cluster does not serve resource.k8s.io/v1: Kubernetes 1.34 or later has it" in answer


def test_a_packaged_chart_is_whole(tmp_path: Path) -> None:
    run(build.build_helm(), "package", CHART, "--destination", tmp_path)
    (archive,) = tmp_path.glob("tesela-*.tgz")
    flags = ("--set", f"deviceClasses.families={{{','.join(FAMILIES)}}}")

    packaged = index(run(build.build_helm(), "template", "tesela", archive, "--namespace", "tesela", *flags))

    assert packaged == template(*flags, hooks=True)


def test_helm_lint_has_nothing_to_say() -> None:
    assert "0 chart(s) failed" in run(build.build_helm(), "lint", "--strict", CHART)
