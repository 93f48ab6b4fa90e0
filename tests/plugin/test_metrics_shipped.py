"""What daemonset/monitoring ships: dashboards as Grafana takes them, alerts with page and test, names that exist.

That the queries return data, and that the alerts fire, is shown on a real Prometheus: tests/e2e/test_monitoring.py and
test_alerts.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard
from tesela.cli.main import VERBS
from tesela.edge.telemetry.catalogue import BY_NAME, METRICS, Kind
from tesela.edge.telemetry.metrics import Metrics
from tesela.edge.telemetry.snapshot import Snapshot

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "daemonset" / "monitoring"
RUNBOOKS = ROOT / "docs" / "runbooks"


def read_rules(file):
    """Every rule of a rule file."""
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


RULES = read_rules(MONITORING / "alerts.yaml")
OLD = read_rules(MONITORING / "old-names.yaml")
NAMES = [rule["alert"] for rule in RULES]
BOARDS = {path.name: json.loads(path.read_text()) for path in sorted(MONITORING.glob("*.json"))}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"] if panel["type"] != "row"]
SECTIONS = ["What it means", "What users feel", "First three commands", "How to fix it", "How to silence it"]
OF_PROMETHEUS = {"job", "instance", "node", "le"}
"""Labels that the scrape or the kind of a metric adds."""
TESTED = [
    test
    for path in sorted((ROOT / "tests/e2e/alerts").glob("*.yaml"))
    for test in yaml.safe_load(path.read_text())["tests"]
]


def list_queries():
    """Where a query stands, and the query."""
    boards = [(f"{name}: {panel['title']}", target["expr"]) for name, panel in PANELS for target in panel["targets"]]
    return [
        *boards,
        *((rule["alert"], rule["expr"]) for rule in RULES),
        *((rule["record"], rule["expr"]) for rule in OLD),
    ]


def list_variables():
    return [
        (f"{name}: {variable['name']}", variable["query"]["query"])
        for name, board in BOARDS.items()
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]


@pytest.fixture(scope="module")
def exported():
    """Names of everything that a driver exposes, as scraped."""
    metrics = Metrics()
    metrics.watch(lambda: Snapshot(version="0"))
    families = {family.name: family.type for family in metrics.registry.collect()}
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
    return {name + suffix for name, kind in families.items() for suffix in suffixes.get(kind, ("",))}


# Dashboards


def test_dashboards_are_what_their_generator_writes():
    done = subprocess.run(
        [sys.executable, MONITORING / "generate.py", "--check"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_holds_nothing_that_grafana_s_schema_does_not_know(name):
    """Read into Grafana's own types and written again, it is the same: an unknown field would be lost on the way."""
    register_default_plugins()

    again = json.loads(JSONEncoder().encode(Dashboard.from_json(BOARDS[name])))

    assert drop_nulls(again) == BOARDS[name]


def drop_nulls(value):
    if isinstance(value, dict):
        return {key: drop_nulls(one) for key, one in value.items() if one is not None}
    return [drop_nulls(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("name", "panel"), [pytest.param(*one, id=f"{one[0]}: {one[1]['title']}") for one in PANELS])
def test_a_panel_explains_itself_in_a_unit_of_grafana_s(name, panel):
    unit = panel["fieldConfig"]["defaults"]["unit"]

    assert (bool(panel["title"]), bool(panel["description"]), unit in vars(units).values()) == (True, True, True)


def test_no_data_source_is_named():
    sources = {json.dumps(one) for board in BOARDS.values() for one in find_sources(board)}

    assert sources == {json.dumps({"type": "prometheus", "uid": "${datasource}"})}


def find_sources(value):
    """Every value of a field `datasource`, however deep."""
    if isinstance(value, dict):
        found = [value["datasource"]] if "datasource" in value else []
        return [*found, *(one for part in value.values() for one in find_sources(part))]
    return [one for part in value for one in find_sources(part)] if isinstance(value, list) else []


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_share_a_number_or_a_place(name):
    panels = BOARDS[name]["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert (len({panel["id"] for panel in panels}), len(set(cells)), max(x for x, _ in cells)) == (
        len(panels),
        len(cells),
        23,
    )


# Names


@pytest.mark.parametrize(("where", "query"), [*list_queries(), *list_variables()])
def test_a_query_asks_for_metrics_and_labels_that_exist(exported, where, query):
    asked = re.findall(r"\b((?:tesela|process)_\w+)(?:\{([^}]*)\})?", query)
    strange = {name for name, _ in asked} - exported
    wrong = {
        (name, label)
        for name, labels in asked
        for label in re.findall(r"(\w+)\s*[=!]", labels)
        if label not in known(name)
    }

    assert (strange, wrong) == (set(), set())


def known(name):
    """Labels of a metric as scraped."""
    metric = BY_NAME.get(name) or BY_NAME.get(re.sub(r"_(bucket|count|sum)$", "", name))
    return OF_PROMETHEUS | set(metric.labels if metric else ())


def test_every_gauge_of_the_catalogue_is_shown_somewhere():
    shown = " ".join(query for _, query in list_queries())

    assert [one.name for one in METRICS if one.kind is Kind.GAUGE and one.name not in shown] == []


# Alerts


def test_each_alert_has_a_page_and_each_page_an_alert():
    assert sorted(NAMES) == sorted(path.stem for path in RUNBOOKS.glob("*.md") if path.stem != "README")


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_an_alert_says_what_is_wrong_and_names_its_page(rule):
    assert (set(rule["annotations"]), rule["annotations"]["runbook_url"], rule["labels"]["severity"] in SEVERITIES) == (
        {"summary", "description", "runbook_url"},
        f"docs/runbooks/{rule['alert']}.md",
        True,
    )


SEVERITIES = {"critical", "warning", "info"}


@pytest.mark.parametrize("alert", NAMES)
def test_an_alert_is_tested_to_be_quiet_to_fire_and_to_clear(alert):
    (steps,) = [test["alert_rule_test"] for test in TESTED if test["name"] == alert]

    assert [(step["alertname"], bool(step.get("exp_alerts"))) for step in steps] == [
        (alert, False),
        (alert, True),
        (alert, False),
    ]


@pytest.mark.parametrize("alert", NAMES)
def test_a_page_answers_the_five_questions(alert):
    text = (RUNBOOKS / f"{alert}.md").read_text()
    commands = text.partition("## First three commands\n```\n")[2].partition("\n```")[0].splitlines()

    assert (text.splitlines()[0], re.findall(r"^## (.*)$", text, re.MULTILINE), len(commands)) == (
        f"# {alert}",
        SECTIONS,
        3,
    )


def test_the_list_of_pages_has_each_alert_with_its_severity():
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| (\w+) \|$", (RUNBOOKS / "README.md").read_text(), re.MULTILINE)

    assert listed == [(rule["alert"], rule["labels"]["severity"]) for rule in RULES]


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_leads_nowhere_that_is_not_there(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_speaks_of_commands_that_exist(page):
    assert set(re.findall(r"\btesela ([a-z-]+)", page.read_text())) <= set(VERBS)


def test_a_driver_that_waits_for_its_gpu_driver_has_the_series_that_alerts_know_it_by():
    waiting = {family.name for family in Metrics().registry.collect()}

    assert ("tesela_slice_writes" in waiting, "tesela_kubelet_registered" in waiting) == (True, False)


# The Prometheus operator


def test_the_page_s_command_makes_a_rule_object_of_the_file(tmp_path):
    text = (ROOT / "docs" / "observability.md").read_text()
    command = text.partition("```sh\n# PrometheusRule\n")[2].partition("| kubectl")[0]
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    rule = yaml.safe_load(done.stdout)

    assert (rule["kind"], [one["alert"] for group in rule["spec"]["groups"] for one in group["rules"]]) == (
        "PrometheusRule",
        NAMES,
    )


def test_both_ways_to_scrape_keep_the_labels_of_claims_and_name_the_node():
    (job,) = yaml.safe_load((MONITORING / "scrape.yaml").read_text())["scrape_configs"]
    (endpoint,) = yaml.safe_load((MONITORING / "podmonitor.yaml").read_text())["spec"]["podMetricsEndpoints"]
    plain = {one.get("target_label") for one in job["relabel_configs"]}
    operator = {one.get("targetLabel") for one in endpoint["relabelings"]}

    assert (job["honor_labels"], "node" in plain, endpoint["honorLabels"], operator) == (
        True,
        True,
        True,
        {"job", "node"},
    )
