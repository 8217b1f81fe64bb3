"""Startup of Python processes of Spark: `pyspark` is imported from its compiled files.

Spark puts ``pyspark.zip`` first on their path.  It has sources only, so that each process compiles
them again, for a second of processor time.
"""

import sys
from importlib.machinery import PathFinder

others = [place for place in sys.path if not place.endswith("pyspark.zip")]
if PathFinder.find_spec("pyspark", others):
    sys.path[:] = others
