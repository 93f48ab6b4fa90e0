# ruff: noqa: INP001 - a program beside its data, no package
"""Writes the Grafana dashboards beside this file; `--check` says which differ from what it would write, and exits 1.

A panel is one line of data in `panels.py`; this turns them into Grafana's JSON by its own foundation SDK, so that field
names and values are Grafana's. Nothing names a data source: it is a variable of each dashboard.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.builders import common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    VariableOption,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from panels import DASHBOARDS, Board, Panel, Variable

HERE = Path(__file__).resolve().parent
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
STAT_HEIGHT = 4
HEIGHT = 8


def render(board: Board) -> str:
    """A dashboard as Grafana imports it."""
    builder = (
        dashboards.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["tesela"])
        .time("now-6h", "now")
        .refresh("1m")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(dashboards.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .link(
            dashboards.DashboardLink("Tesela")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["tesela"])
            .as_dropdown(False)
            .include_vars(True)
            .keep_time(True)
        )
    )
    for variable in board.variables:
        builder.with_variable(_build_variable(variable))
    number = 0
    for row, panels in board.rows.items():
        number += 1
        builder.with_row(dashboards.Row(row).id(number))
        for panel in panels:
            number += 1
            builder.with_panel(_build_panel(panel).id(number))
    return json.dumps(_drop_nulls(json.loads(JSONEncoder().encode(builder.build()))), indent=1, sort_keys=True) + "\n"


def _build_variable(variable: Variable) -> dashboards.QueryVariable:
    built = (
        dashboards.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query({"query": variable.query, "refId": variable.name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
    if variable.several:
        built.multi(True).include_all(True).all_value(".*").current(VariableOption(text=["All"], value=["$__all"]))
    return built


def _build_panel(panel: Panel) -> stat.Panel | table.Panel | timeseries.Panel:
    built: stat.Panel | table.Panel | timeseries.Panel
    if panel.kind == "stat":
        mode = BigValueTextMode.VALUE_AND_NAME if panel.legend else BigValueTextMode.VALUE
        built = (
            stat.Panel()
            .text_mode(mode)
            .color_mode(BigValueColorMode.NONE)
            .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        )
    elif panel.kind == "table":
        hidden = {"Time": True, "__name__": True, "job": True, "instance": True}
        organize = DataTransformerConfig(id_val="organize", options={"excludeByName": hidden})
        built = table.Panel().show_header(True).with_transformation(organize)
    else:
        legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
        built = (
            timeseries.Panel()
            .legend(legend.show_legend(True).calcs([]))
            .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
            .min(0)
            .fill_opacity(10)
        )
    return (
        built.title(panel.title)
        .description(panel.description)
        .unit(panel.unit)
        .datasource(SOURCE)
        .span(panel.width)
        .height(STAT_HEIGHT if panel.kind == "stat" else HEIGHT)
        .with_target(_build_query(panel))
    )


def _build_query(panel: Panel) -> prometheus.Dataquery:
    query = prometheus.Dataquery().ref_id("A").expr(panel.query).datasource(SOURCE)
    if panel.kind == "table":
        return query.instant().format(PromQueryFormat.TABLE)
    return query.range().legend_format(panel.legend)


def _drop_nulls(value: object) -> object:
    """Without fields that are null: the SDK writes some that Grafana leaves out."""
    if isinstance(value, dict):
        return {key: _drop_nulls(one) for key, one in value.items() if one is not None}
    return [_drop_nulls(one) for one in value] if isinstance(value, list) else value


def main() -> int:
    """Writes or checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a dashboard has drifted")
    check = parser.parse_args().check
    texts = {HERE / f"{board.uid}.json": render(board) for board in DASHBOARDS}
    drifted = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in drifted:
        if check:
            sys.stderr.write(f"{path.name} is not what generate.py writes; run it\n")
        else:
            path.write_text(texts[path])
    return 1 if check and drifted else 0


if __name__ == "__main__":
    sys.exit(main())
