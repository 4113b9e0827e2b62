"""Published tables as data: run the experiment behind one and print their numbers beside ours."""

from fedleak.reproduction.cells import Cell, cells
from fedleak.reproduction.table import Published, Table, load_table, table_names

__all__ = ["Cell", "Published", "Table", "cells", "load_table", "table_names"]
