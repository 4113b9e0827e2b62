"""Published tables as data: run the experiment behind one and print their numbers beside ours."""

from fedleak.reproduction.cells import Cell, cells
from fedleak.reproduction.comparisons import compared
from fedleak.reproduction.conditions import under_other_conditions
from fedleak.reproduction.evidence import Evidence, loss_factors
from fedleak.reproduction.figures import draw_figures
from fedleak.reproduction.selection import Selection
from fedleak.reproduction.table import Figure, Published, Table, load_table, table_names

__all__ = [
    "Cell",
    "Evidence",
    "Figure",
    "Published",
    "Selection",
    "Table",
    "cells",
    "compared",
    "draw_figures",
    "load_table",
    "loss_factors",
    "table_names",
    "under_other_conditions",
]
