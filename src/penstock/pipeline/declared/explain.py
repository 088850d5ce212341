"""A pipeline in words and as a graph (Mermaid, which most readers of Markdown draw)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from penstock.pipeline.declared.build import Built, Site
from penstock.pipeline.declared.checks import dead_letter_topic
from penstock.pipeline.declared.document import OnBadRow, PythonStep, SqlStep, TopicSource
from penstock.pipeline.declared.prepare import inferred, state_of


def describe(built: Built, site: Site, *, with_plan: bool = False) -> dict[str, Any]:
    pipeline = built.pipeline
    found = inferred(built)
    views = []
    for name, frame in built.views.items():
        source = pipeline.sources.get(name)
        kind = "step" if source is None else "topic" if isinstance(source, TopicSource) else "table"
        origin = "" if source is None else source.topic if isinstance(source, TopicSource) else source.path
        if isinstance(source, TopicSource):
            how = "columns found in a sample" if name in found else "columns as declared"
            origin += f", {source.format}, {how}"
        views.append({"name": name, "kind": kind, "origin": origin, "columns": _columns(frame)})
    steps = pipeline.all_steps
    if steps and steps[-1].name is None:
        views.append({"name": "result", "kind": "the", "origin": "", "columns": _columns(built.result)})
    described = {
        "name": built.name,
        "description": pipeline.description,
        "sink": pipeline.sink.describe().text,
        "mode": pipeline.sink.mode.value,
        "trigger": pipeline.trigger,
        "bad rows": _bad_rows(built),
        "checkpoint": state_of(site, built.name, pipeline).checkpoint,
        "group": f"penstock-spark-{built.name}",
        "views": views,
        "schemas": {name: plan.columns for name, plan in built.plans.items()},
    }
    if with_plan:
        described["plan"] = _plan(built)
    return described


def _columns(frame: Any) -> list[dict[str, str]]:
    return [{"name": field.name, "type": field.dataType.simpleString()} for field in frame.schema.fields]


def _bad_rows(built: Built) -> str:
    pipeline = built.pipeline
    if pipeline.on_bad_row is OnBadRow.DEAD_LETTER:
        return f"to topic {dead_letter_topic(built.name, pipeline)}"
    return "end the pipeline" if pipeline.on_bad_row is OnBadRow.FAIL else "are left out"


def _plan(built: Built) -> str:
    jvm: Any = built.spark._jvm  # noqa: SLF001  `explain` itself prints, and we want the text
    mode = jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
    return str(built.result._jdf.queryExecution().explainString(mode))  # noqa: SLF001


# ------------------------------------------------------------------ the graph


def mermaid(builts: Sequence[Built]) -> str:
    """Topics are cylinders and shared: what one pipeline writes and another reads joins them."""
    lines = ["flowchart LR"]
    nodes: dict[str, str] = {}
    for built in builts:
        lines += _pipeline_lines(built, nodes)
    return "\n".join([lines[0], *(f"  {text}" for text in [*nodes.values(), *lines[1:]])])


def _pipeline_lines(built: Built, nodes: dict[str, str]) -> list[str]:
    pipeline = built.pipeline
    views: dict[str, str] = {}
    edges: list[str] = []
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource):
            places = [_topic(nodes, topic) for topic in source.topics]
        else:
            places = [_node(nodes, f"table-{source.path}", f'[("{source.kind} {_text(source.path)}")]')]
        view = _node(nodes, f"{built.name}-{name}", f'["{_text(name)}"]')
        views[name] = view
        edges += [f"{place} --> {view}" for place in places]
        if isinstance(source, TopicSource) and pipeline.on_bad_row is OnBadRow.DEAD_LETTER:
            edges.append(f"{view} -. bad rows .-> {_topic(nodes, dead_letter_topic(built.name, pipeline))}")
    last = next(iter(views.values()))
    for number, step in enumerate(pipeline.all_steps):
        name = step.name or (built.name if len(pipeline.all_steps) == 1 else f"step {number + 1}")
        label = f"{name}: {step.python}" if isinstance(step, PythonStep) else name
        node = _node(nodes, f"{built.name}-step-{number}", f'[["{_text(label)}"]]')
        edges += [f"{views[view]} --> {node}" for view in _read_by(step, list(views), built.spark)]
        if step.name is not None:
            views[step.name] = node
        last = node
    return [*edges, f"{last} --> {_sink_node(built, nodes)}"]


def _read_by(step: SqlStep | PythonStep, views: list[str], spark: Any) -> list[str]:
    """Views that the SQL reads, as Spark's parser has it; a function is given all of them."""
    if isinstance(step, PythonStep):
        return views
    parser = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001  it has no door of its own
    plan = str(parser.parsePlan(step.sql).toString())
    read = {name.strip("`").lower() for name in re.findall(r"UnresolvedRelation \[([^\],]+)\]", plan)}
    return [view for view in views if view.lower() in read]


def _sink_node(built: Built, nodes: dict[str, str]) -> str:
    sink = built.pipeline.sink
    if sink.claims.topic is not None:
        return _topic(nodes, sink.claims.topic)
    described = sink.describe()
    text = _text(described.text)
    shape = f'[("{text}")]' if described.is_table else f'["{text}"]'
    return _node(nodes, f"{built.name}-sink", shape)


def _topic(nodes: dict[str, str], name: str) -> str:
    return _node(nodes, f"topic-{name}", f'[("topic {_text(name)}")]')


def _node(nodes: dict[str, str], name: str, shape: str) -> str:
    identifier = "n_" + re.sub(r"\W", lambda found: f"_{ord(found[0]):x}_", name)
    nodes.setdefault(name, f"{identifier}{shape}")
    return identifier


def _text(text: str) -> str:
    return text.replace('"', "#quot;")
