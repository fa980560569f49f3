"""Turns dashboards into Grafana's own model, by Grafana's own library."""

from __future__ import annotations

import json
import string
from typing import Dict, List, Union

from grafana_foundation_sdk.builders import bargauge, common, heatmap, prometheus, stat, table, text, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

from deploy.grafana.generator.layout import placed
from deploy.grafana.generator.panel import Bars, Dashboard, HeatMap, Lines, Note, Number, Panel, Row, Table, Variable
from deploy.grafana.generator.shared import TITLES

SOURCE = models.DataSourceRef(type_val="prometheus", uid="prometheus")
ALL = ".*"
DOCS = "/public/shoal"  # where deploy/compose.yaml lets Grafana serve docs/
RUNBOOK = "${docs}/operations.md"
KEPT = "${__all_variables}&${__url_time_range}"  # what a panel's link to a dashboard takes along
TOO_SMALL = 1e-9  # a heat map's cell below it is empty

Drawn = Union[timeseries.Panel, stat.Panel, bargauge.Panel, heatmap.Panel, table.Panel]
Change = models.DynamicConfigValue


def rendered(dashboard: Dashboard) -> str:
    """The text of the file that Grafana reads."""
    return json.dumps(built(dashboard), cls=JSONEncoder, sort_keys=True, indent=2) + "\n"


def built(dashboard: Dashboard) -> models.Dashboard:
    """The dashboard in Grafana's model."""
    whole = (
        builders.Dashboard(dashboard.title)
        .uid(dashboard.uid)
        .description(dashboard.description)
        .tags(["shoal"])
        .readonly()
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
    )
    for uid in TITLES:
        if uid != dashboard.uid:
            whole.link(_to_dashboard(uid, f"/d/{uid}").include_vars(True).keep_time(True))
    whole.link(_to_docs("Runbook", RUNBOOK))
    for variable in dashboard.variables:
        whole.with_variable(_variable(variable))
    docs = builders.TextBoxVariable("docs").label("Docs").description("Address of shoal's docs folder")
    whole.with_variable(docs.default_value(DOCS).current(models.VariableOption(text=DOCS, value=DOCS)))
    for number, (thing, place) in enumerate(placed(dashboard), start=1):
        at = models.GridPos(x=place.x, y=place.y, w=place.width, h=place.height)
        if isinstance(thing, Row):
            whole.with_row(builders.Row(thing.title).id(number).grid_pos(at))
        elif isinstance(thing, Note):
            note = text.Panel().title(thing.title).mode(TextMode.MARKDOWN).content(thing.text)
            whole.with_panel(note.id(number).grid_pos(at))
        else:
            whole.with_panel(_panel(thing).id(number).grid_pos(at))
    return whole.build()


def _to_dashboard(uid: str, url: str) -> builders.DashboardLink:
    return builders.DashboardLink(TITLES[uid]).type(models.DashboardLinkType.LINK).url(url).icon("dashboard")


def _to_docs(title: str, url: str) -> builders.DashboardLink:
    return builders.DashboardLink(title).type(models.DashboardLinkType.LINK).url(url).icon("doc").target_blank(True)


def _variable(variable: Variable) -> builders.QueryVariable:
    asked = (
        builders.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query(f"label_values({variable.metric}, {variable.source})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
    if not variable.many:
        # Names of runs end in the time of their start: the latest comes first.
        return asked.sort(models.VariableSort.NATURAL_DESC)
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    asked.sort(models.VariableSort.NATURAL_ASC).multi(True).include_all(True).all_value(ALL)
    return asked.current(everything)


def _panel(panel: Panel) -> Drawn:
    drawn = _kind(panel)
    drawn.title(panel.title).description(panel.description).datasource(SOURCE).unit(panel.unit)
    steps = [models.Threshold(value=None, color=panel.base)]
    steps += [models.Threshold(value=value, color=color) for value, color in panel.limits]
    drawn.thresholds(builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    if panel.lowest is not None:
        drawn.min(panel.lowest)
    if panel.highest is not None:
        drawn.max(panel.highest)
    if panel.decimals is not None:
        drawn.decimals(panel.decimals)
    if panel.empty:
        drawn.no_value(panel.empty)
    for legend, changes in _changes(panel).items():
        drawn.override_by_name(legend, changes)
    links = [_to_docs(f"Runbook: {alert}", f"{RUNBOOK}#{alert.lower()}") for alert in panel.alerts]
    links += [_to_dashboard(uid, f"/d/{uid}?{KEPT}") for uid in panel.more]
    if links:
        drawn.links(list(links))
    for target in _targets(panel):
        drawn.with_target(target)
    return drawn


def _targets(panel: Panel) -> List[prometheus.Dataquery]:
    targets = []
    for letter, query in zip(string.ascii_uppercase, panel.queries):
        target = prometheus.Dataquery().ref_id(letter).expr(query.expr).legend_format(query.legend).datasource(SOURCE)
        if isinstance(panel, Table):
            target.instant().format(PromQueryFormat.TABLE)
        elif isinstance(panel, (Bars, Number)):
            target.instant().format(PromQueryFormat.TIME_SERIES)
        elif isinstance(panel, HeatMap):
            target.range().format(PromQueryFormat.HEATMAP)
        else:
            target.range().format(PromQueryFormat.TIME_SERIES)
        targets.append(target)
    return targets


def _changes(panel: Panel) -> Dict[str, List[Change]]:
    """What single series or columns have for themselves, by name."""
    changes: Dict[str, List[Change]] = {}
    for legend, words in panel.words.items():
        changes.setdefault(legend, []).append(Change(id_val="displayName", value=words))
    if isinstance(panel, Lines):
        for legend in panel.dashed:
            dash = Change(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 8]})
            thin = Change(id_val="custom.fillOpacity", value=0)
            changes.setdefault(legend, []).extend((dash, thin))
    if isinstance(panel, Table):
        for column, unit in panel.units.items():
            changes.setdefault(column, []).append(Change(id_val="unit", value=unit))
    return changes


def _kind(panel: Panel) -> Drawn:
    if isinstance(panel, Lines):
        return _lines(panel)
    if isinstance(panel, Number):
        return _number(panel)
    if isinstance(panel, Bars):
        return _bars()
    if isinstance(panel, HeatMap):
        return _heat_map(panel)
    if isinstance(panel, Table):
        return _table(panel)
    raise TypeError(f"{type(panel).__name__} is no kind of panel that Grafana has")


def _lines(panel: Lines) -> timeseries.Panel:
    scale = looks.ScaleDistribution.LOG if panel.logarithmic else looks.ScaleDistribution.LINEAR
    lines = (
        timeseries.Panel()
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC))
        .line_width(1)
        .fill_opacity(30 if panel.stacked else 8)
        .show_points(looks.VisibilityMode.NEVER)
        .axis_label(panel.axis)
        .scale_distribution(
            common.ScaleDistributionConfig().type(scale).log(10)
            if panel.logarithmic
            else common.ScaleDistributionConfig().type(scale)
        )
        .stacking(
            common.StackingConfig()
            .mode(looks.StackingMode.NORMAL if panel.stacked else looks.StackingMode.NONE)
            .group("A")
        )
        .legend(_legend(panel))
        .tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(looks.SortOrder.DESCENDING))
    )
    if panel.steps:
        lines.line_interpolation(looks.LineInterpolation.STEP_AFTER)
    return lines


def _legend(panel: Lines) -> common.VizLegendOptions:
    legend = common.VizLegendOptions().show_legend(True).calcs(["lastNotNull"])
    if panel.ranked:
        legend.display_mode(looks.LegendDisplayMode.TABLE).placement(looks.LegendPlacement.RIGHT)
        return legend.sort_by("Last *").sort_desc(True)
    return legend.display_mode(looks.LegendDisplayMode.LIST).placement(looks.LegendPlacement.BOTTOM)


def _latest() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().values(False).calcs(["lastNotNull"]).fields("")


def _number(panel: Number) -> stat.Panel:
    mode = looks.BigValueTextMode.VALUE_AND_NAME if panel.with_names else looks.BigValueTextMode.VALUE
    return (
        stat.Panel()
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .reduce_options(_latest())
        .text_mode(mode)
        .color_mode(looks.BigValueColorMode.VALUE)
        .graph_mode(looks.BigValueGraphMode.NONE)
    )


def _bars() -> bargauge.Panel:
    return (
        bargauge.Panel()
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .reduce_options(_latest())
        .orientation(looks.VizOrientation.HORIZONTAL)
        .display_mode(looks.BarGaugeDisplayMode.BASIC)
        .name_placement(looks.BarGaugeNamePlacement.TOP)
        .show_unfilled(True)
    )


def _heat_map(panel: HeatMap) -> heatmap.Panel:
    color = (
        heatmap.HeatmapColorOptions()
        .mode(HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .scale(HeatmapColorScale.EXPONENTIAL)
        .exponent(0.5)
        .steps(64)
    )
    return (
        heatmap.Panel()
        .calculate(False)
        .color(color)
        .filter_values(heatmap.FilterValueRange().le(TOO_SMALL))
        .y_axis(heatmap.YAxisConfig().unit(panel.unit).axis_placement(looks.AxisPlacement.LEFT))
        .hide_from(common.HideSeriesConfig().legend(False).tooltip(False).viz(False))
        .show_legend()
    )


def _table(panel: Table) -> table.Panel:
    """One row for each value of the key: the queries' tables are joined, and only key and values are kept."""
    values = [f"Value #{letter}" for letter, _ in zip(string.ascii_uppercase, panel.columns)]
    names = dict(zip(values, panel.columns))
    order = {name: index for index, name in enumerate((panel.key, *values))}
    pattern = f"^({panel.key}|{'|'.join(values)})$"
    steps: Dict[str, object] = {
        "joinByField": {"byField": panel.key, "mode": "outer"},
        "filterFieldsByName": {"include": {"pattern": pattern}},
        "organize": {"excludeByName": {}, "indexByName": order, "renameByName": names},
        "sortBy": {"fields": {}, "sort": [{"field": panel.columns[0], "desc": True}]},
    }
    made = table.Panel().show_header(True).cell_height(looks.TableCellHeight.SM).align(looks.FieldTextAlignment.AUTO)
    for kind, options in steps.items():
        made.with_transformation(models.DataTransformerConfig(id_val=kind, options=options))
    return made
