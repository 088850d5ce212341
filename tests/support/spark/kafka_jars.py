"""Spark's own Kafka connector, from Maven Central, in `build/spark-kafka/` (git ignores it): or the reason why not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

FETCH_SECONDS_MAX: Final = 300
CACHE: Final = Path(__file__).parents[3] / "build" / "spark-kafka"
# The connector's version and that of its second half. That of the Spark in use first; then pairs that were seen to work
# with it, because a mirror may lack one of the two.
FALLBACKS: Final = (("4.2.0", "4.2.0"), ("4.2.0", "4.0.0"))

_PROJECT: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId><artifactId>spark-kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>spark-token-provider-kafka-0-10_2.13</artifactId><version>{half}</version>
      <exclusions><exclusion><groupId>org.apache.kafka</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId><version>{whole}</version>
      <exclusions>
        <exclusion>
          <groupId>org.apache.spark</groupId><artifactId>spark-token-provider-kafka-0-10_2.13</artifactId>
        </exclusion>
      </exclusions>
    </dependency>
  </dependencies>
</project>
"""
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
# The rest of what it depends on is Spark's own.
_WANTED: Final = "spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2"


def find_connector(spark_version: str) -> list[Path] | str:
    maven = shutil.which("mvn")
    told = "no Maven on the path, and the connector has not been fetched before"
    for whole, half in ((spark_version, spark_version), *FALLBACKS):
        directory = CACHE / f"{whole}-{half}"
        if (directory / "complete").exists():
            return sorted(directory.glob("*.jar"))
        if maven is not None:
            problem = _fetch(maven, directory, whole, half)
            if problem is None:
                return sorted(directory.glob("*.jar"))
            told = problem
    return told


def _fetch(maven: str, directory: Path, whole: str, half: str) -> str | None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "pom.xml").write_text(_PROJECT.format(whole=whole, half=half))
    options = [f"-DincludeArtifactIds={_WANTED}", "-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
    try:
        done = subprocess.run(
            [maven, "-q", "-B", _COPY, *options],
            cwd=directory,
            timeout=FETCH_SECONDS_MAX,
            capture_output=True,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return f"Maven Central did not answer within {FETCH_SECONDS_MAX} s"
    if done.returncode != 0:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line] or ["it says nothing"]
        return f"Maven cannot fetch Spark's Kafka connector {whole}: {errors[0][:300]}"
    (directory / "complete").touch()
    return None
