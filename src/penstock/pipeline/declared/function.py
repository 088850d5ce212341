"""A step in Python: `module:function(spark, frames) -> DataFrame`, the module beside the pipeline file or installed."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipeline.declared.document import PythonStep
from penstock.pipeline.declared.errors import read_complaint
from penstock.pipeline.declared.problems import Path as Where
from penstock.pipeline.declared.problems import Problems, suggestion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def call_function(
    spark: SparkSession, step: PythonStep, views: dict[str, Any], directory: Path, path: Where, problems: Problems
) -> DataFrame | None:
    """None: `problems` say why."""
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    function = _load(step.python, directory, path, problems)
    if function is None:
        return None
    try:
        made = function(spark, dict(views))
    except PySparkException as error:
        problems.add(path, f"{step.python} raised {read_complaint(error, tuple(views)).text}")
        return None
    except (Exception, SystemExit) as error:  # noqa: BLE001  the edge of a user's code: what it raises is told as its own
        problems.add(path, f"{step.python} raised {type(error).__name__}: {' '.join(str(error).split())}")
        return None
    if not isinstance(made, DataFrame):
        problems.add(path, f"{step.python} returned {type(made).__name__}, a DataFrame is meant")
        return None
    return made


def _load(text: str, directory: Path, path: Where, problems: Problems) -> Any:
    """The function; its module goes to the workers with it."""
    from pyspark import cloudpickle

    module_name, _, function_name = text.partition(":")
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # noqa: BLE001  the edge of a user's code: a module may raise anything
        problems.add(path, f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}")
        return None
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        told = suggestion(function_name, known)
        problems.add(path, f"module {module_name!r} has no function {function_name!r}{told}")
        return None
    # By value: the workers of a cluster do not have the directory of the file on their path.
    if Path(getattr(module, "__file__", None) or "").parent == directory:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return function
